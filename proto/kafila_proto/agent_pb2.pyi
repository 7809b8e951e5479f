from kafila_proto import rendezvous_pb2 as _rendezvous_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateRequest(_message.Message):
    __slots__ = ("model", "members", "context_tokens", "concurrency", "dtype", "objective", "division", "quant", "draft")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    DIVISION_FIELD_NUMBER: _ClassVar[int]
    QUANT_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    model: str
    members: int
    context_tokens: int
    concurrency: int
    dtype: str
    objective: str
    division: str
    quant: str
    draft: str
    def __init__(self, model: _Optional[str] = ..., members: _Optional[int] = ..., context_tokens: _Optional[int] = ..., concurrency: _Optional[int] = ..., dtype: _Optional[str] = ..., objective: _Optional[str] = ..., division: _Optional[str] = ..., quant: _Optional[str] = ..., draft: _Optional[str] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("code",)
    CODE_FIELD_NUMBER: _ClassVar[int]
    code: str
    def __init__(self, code: _Optional[str] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProbeRequest(_message.Message):
    __slots__ = ("model", "dtype", "quant")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    QUANT_FIELD_NUMBER: _ClassVar[int]
    model: str
    dtype: str
    quant: str
    def __init__(self, model: _Optional[str] = ..., dtype: _Optional[str] = ..., quant: _Optional[str] = ...) -> None: ...

class ProbeReply(_message.Message):
    __slots__ = ("member_json", "notices")
    MEMBER_JSON_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    member_json: str
    notices: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, member_json: _Optional[str] = ..., notices: _Optional[_Iterable[str]] = ...) -> None: ...

class ExamineRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class ExamineReply(_message.Message):
    __slots__ = ("checks",)
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    checks: _containers.RepeatedCompositeFieldContainer[Check]
    def __init__(self, checks: _Optional[_Iterable[_Union[Check, _Mapping]]] = ...) -> None: ...

class Check(_message.Message):
    __slots__ = ("name", "verdict", "finding", "next_step")
    class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OK: _ClassVar[Check.Verdict]
        DOUBTFUL: _ClassVar[Check.Verdict]
        BAD: _ClassVar[Check.Verdict]
        UNKNOWN: _ClassVar[Check.Verdict]
    OK: Check.Verdict
    DOUBTFUL: Check.Verdict
    BAD: Check.Verdict
    UNKNOWN: Check.Verdict
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    FINDING_FIELD_NUMBER: _ClassVar[int]
    NEXT_STEP_FIELD_NUMBER: _ClassVar[int]
    name: str
    verdict: Check.Verdict
    finding: str
    next_step: str
    def __init__(self, name: _Optional[str] = ..., verdict: _Optional[_Union[Check.Verdict, str]] = ..., finding: _Optional[str] = ..., next_step: _Optional[str] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("name", "fingerprint", "version", "rendezvous", "attached", "api_url", "metrics_url", "session")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    API_URL_FIELD_NUMBER: _ClassVar[int]
    METRICS_URL_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    fingerprint: str
    version: str
    rendezvous: str
    attached: bool
    api_url: str
    metrics_url: str
    session: SessionStatus
    def __init__(self, name: _Optional[str] = ..., fingerprint: _Optional[str] = ..., version: _Optional[str] = ..., rendezvous: _Optional[str] = ..., attached: _Optional[bool] = ..., api_url: _Optional[str] = ..., metrics_url: _Optional[str] = ..., session: _Optional[_Union[SessionStatus, _Mapping]] = ...) -> None: ...

class SessionStatus(_message.Message):
    __slots__ = ("state", "code", "reason", "refused", "model", "dtype", "expected_members", "context_tokens", "concurrency", "epoch", "members", "fleet_json", "plan_json", "measured")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NONE: _ClassVar[SessionStatus.State]
        FORMING: _ClassVar[SessionStatus.State]
        CONNECTING: _ClassVar[SessionStatus.State]
        LOADING: _ClassVar[SessionStatus.State]
        SERVING: _ClassVar[SessionStatus.State]
        CLOSED: _ClassVar[SessionStatus.State]
        HELD: _ClassVar[SessionStatus.State]
    NONE: SessionStatus.State
    FORMING: SessionStatus.State
    CONNECTING: SessionStatus.State
    LOADING: SessionStatus.State
    SERVING: SessionStatus.State
    CLOSED: SessionStatus.State
    HELD: SessionStatus.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    FLEET_JSON_FIELD_NUMBER: _ClassVar[int]
    PLAN_JSON_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    state: SessionStatus.State
    code: str
    reason: str
    refused: bool
    model: str
    dtype: str
    expected_members: int
    context_tokens: int
    concurrency: int
    epoch: int
    members: _containers.RepeatedCompositeFieldContainer[MemberStatus]
    fleet_json: str
    plan_json: str
    measured: Measured
    def __init__(self, state: _Optional[_Union[SessionStatus.State, str]] = ..., code: _Optional[str] = ..., reason: _Optional[str] = ..., refused: _Optional[bool] = ..., model: _Optional[str] = ..., dtype: _Optional[str] = ..., expected_members: _Optional[int] = ..., context_tokens: _Optional[int] = ..., concurrency: _Optional[int] = ..., epoch: _Optional[int] = ..., members: _Optional[_Iterable[_Union[MemberStatus, _Mapping]]] = ..., fleet_json: _Optional[str] = ..., plan_json: _Optional[str] = ..., measured: _Optional[_Union[Measured, _Mapping]] = ...) -> None: ...

class MemberStatus(_message.Message):
    __slots__ = ("name", "state", "detail", "loaded_bytes", "total_bytes", "edges", "predicted_stage_s", "measured_stage_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    LOADED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_STAGE_S_FIELD_NUMBER: _ClassVar[int]
    MEASURED_STAGE_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: _rendezvous_pb2.MemberState
    detail: str
    loaded_bytes: int
    total_bytes: int
    edges: _containers.RepeatedCompositeFieldContainer[NamedEdge]
    predicted_stage_s: float
    measured_stage_s: float
    def __init__(self, name: _Optional[str] = ..., state: _Optional[_Union[_rendezvous_pb2.MemberState, str]] = ..., detail: _Optional[str] = ..., loaded_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., edges: _Optional[_Iterable[_Union[NamedEdge, _Mapping]]] = ..., predicted_stage_s: _Optional[float] = ..., measured_stage_s: _Optional[float] = ...) -> None: ...

class NamedEdge(_message.Message):
    __slots__ = ("peer", "path", "rtt_s")
    PEER_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    RTT_S_FIELD_NUMBER: _ClassVar[int]
    peer: str
    path: str
    rtt_s: float
    def __init__(self, peer: _Optional[str] = ..., path: _Optional[str] = ..., rtt_s: _Optional[float] = ...) -> None: ...

class Measured(_message.Message):
    __slots__ = ("tokens_per_s", "ttft_s", "network_share", "tokens", "guessing")
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    TTFT_S_FIELD_NUMBER: _ClassVar[int]
    NETWORK_SHARE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    GUESSING_FIELD_NUMBER: _ClassVar[int]
    tokens_per_s: float
    ttft_s: float
    network_share: float
    tokens: int
    guessing: Guessing
    def __init__(self, tokens_per_s: _Optional[float] = ..., ttft_s: _Optional[float] = ..., network_share: _Optional[float] = ..., tokens: _Optional[int] = ..., guessing: _Optional[_Union[Guessing, _Mapping]] = ...) -> None: ...

class Guessing(_message.Message):
    __slots__ = ("rows", "reason", "right_share", "circuit_s", "interval_s", "gain")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RIGHT_SHARE_FIELD_NUMBER: _ClassVar[int]
    CIRCUIT_S_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    GAIN_FIELD_NUMBER: _ClassVar[int]
    rows: int
    reason: str
    right_share: float
    circuit_s: float
    interval_s: float
    gain: float
    def __init__(self, rows: _Optional[int] = ..., reason: _Optional[str] = ..., right_share: _Optional[float] = ..., circuit_s: _Optional[float] = ..., interval_s: _Optional[float] = ..., gain: _Optional[float] = ...) -> None: ...
