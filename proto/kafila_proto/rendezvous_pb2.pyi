from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MemberState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMBER_STATE_UNSPECIFIED: _ClassVar[MemberState]
    JOINING: _ClassVar[MemberState]
    PROBING: _ClassVar[MemberState]
    WAITING: _ClassVar[MemberState]
    CONNECTING: _ClassVar[MemberState]
    LOADING: _ClassVar[MemberState]
    READY: _ClassVar[MemberState]
    SERVING: _ClassVar[MemberState]
    LEFT: _ClassVar[MemberState]
    HELD: _ClassVar[MemberState]
MEMBER_STATE_UNSPECIFIED: MemberState
JOINING: MemberState
PROBING: MemberState
WAITING: MemberState
CONNECTING: MemberState
LOADING: MemberState
READY: MemberState
SERVING: MemberState
LEFT: MemberState
HELD: MemberState

class Signed(_message.Message):
    __slots__ = ("payload", "certificate", "signature")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    certificate: bytes
    signature: bytes
    def __init__(self, payload: _Optional[bytes] = ..., certificate: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class FromAgent(_message.Message):
    __slots__ = ("hello", "create", "join", "introduction", "admit", "charter", "report", "plan", "circuit", "progress", "leave", "stop_admitting", "resume", "edge_lost", "heard")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    INTRODUCTION_FIELD_NUMBER: _ClassVar[int]
    ADMIT_FIELD_NUMBER: _ClassVar[int]
    CHARTER_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    CIRCUIT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    STOP_ADMITTING_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    EDGE_LOST_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    create: CreateSession
    join: JoinSession
    introduction: Introduction
    admit: Admit
    charter: Signed
    report: Signed
    plan: Signed
    circuit: CircuitRequest
    progress: Progress
    leave: Leave
    stop_admitting: StopAdmitting
    resume: Resume
    edge_lost: EdgeLost
    heard: Heard
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., create: _Optional[_Union[CreateSession, _Mapping]] = ..., join: _Optional[_Union[JoinSession, _Mapping]] = ..., introduction: _Optional[_Union[Introduction, _Mapping]] = ..., admit: _Optional[_Union[Admit, _Mapping]] = ..., charter: _Optional[_Union[Signed, _Mapping]] = ..., report: _Optional[_Union[Signed, _Mapping]] = ..., plan: _Optional[_Union[Signed, _Mapping]] = ..., circuit: _Optional[_Union[CircuitRequest, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., stop_admitting: _Optional[_Union[StopAdmitting, _Mapping]] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ..., edge_lost: _Optional[_Union[EdgeLost, _Mapping]] = ..., heard: _Optional[_Union[Heard, _Mapping]] = ...) -> None: ...

class ToAgent(_message.Message):
    __slots__ = ("challenge", "welcome", "created", "introduction", "charter", "reports", "plan", "circuit", "member", "serve", "closed", "problem", "hold", "heard")
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    INTRODUCTION_FIELD_NUMBER: _ClassVar[int]
    CHARTER_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    CIRCUIT_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    SERVE_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    challenge: Challenge
    welcome: Welcome
    created: SessionCreated
    introduction: Introduction
    charter: Signed
    reports: ReportsComplete
    plan: Signed
    circuit: CircuitGrant
    member: MemberUpdate
    serve: Serve
    closed: Closed
    problem: Problem
    hold: Hold
    heard: Heard
    def __init__(self, challenge: _Optional[_Union[Challenge, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., created: _Optional[_Union[SessionCreated, _Mapping]] = ..., introduction: _Optional[_Union[Introduction, _Mapping]] = ..., charter: _Optional[_Union[Signed, _Mapping]] = ..., reports: _Optional[_Union[ReportsComplete, _Mapping]] = ..., plan: _Optional[_Union[Signed, _Mapping]] = ..., circuit: _Optional[_Union[CircuitGrant, _Mapping]] = ..., member: _Optional[_Union[MemberUpdate, _Mapping]] = ..., serve: _Optional[_Union[Serve, _Mapping]] = ..., closed: _Optional[_Union[Closed, _Mapping]] = ..., problem: _Optional[_Union[Problem, _Mapping]] = ..., hold: _Optional[_Union[Hold, _Mapping]] = ..., heard: _Optional[_Union[Heard, _Mapping]] = ...) -> None: ...

class Challenge(_message.Message):
    __slots__ = ("protocol", "version", "nonce", "udp_port")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    UDP_PORT_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    nonce: bytes
    udp_port: int
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., nonce: _Optional[bytes] = ..., udp_port: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "version", "name", "certificate", "signature", "association", "heard")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    ASSOCIATION_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    name: str
    certificate: bytes
    signature: bytes
    association: bytes
    heard: int
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., name: _Optional[str] = ..., certificate: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., association: _Optional[bytes] = ..., heard: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("goes_on", "heard")
    GOES_ON_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    goes_on: bool
    heard: int
    def __init__(self, goes_on: _Optional[bool] = ..., heard: _Optional[int] = ...) -> None: ...

class Heard(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class CreateSession(_message.Message):
    __slots__ = ("session_id", "expected_members")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    expected_members: int
    def __init__(self, session_id: _Optional[bytes] = ..., expected_members: _Optional[int] = ...) -> None: ...

class SessionCreated(_message.Message):
    __slots__ = ("number", "valid_s")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    VALID_S_FIELD_NUMBER: _ClassVar[int]
    number: str
    valid_s: int
    def __init__(self, number: _Optional[str] = ..., valid_s: _Optional[int] = ...) -> None: ...

class StopAdmitting(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JoinSession(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: str
    def __init__(self, number: _Optional[str] = ...) -> None: ...

class Introduction(_message.Message):
    __slots__ = ("attempt", "step", "element", "confirmation", "certificate", "session_id", "name", "detail")
    class Step(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STEP_UNSPECIFIED: _ClassVar[Introduction.Step]
        OPENED: _ClassVar[Introduction.Step]
        HOST_ELEMENT: _ClassVar[Introduction.Step]
        JOINER_PROOF: _ClassVar[Introduction.Step]
        HOST_PROOF: _ClassVar[Introduction.Step]
        FAILED: _ClassVar[Introduction.Step]
    STEP_UNSPECIFIED: Introduction.Step
    OPENED: Introduction.Step
    HOST_ELEMENT: Introduction.Step
    JOINER_PROOF: Introduction.Step
    HOST_PROOF: Introduction.Step
    FAILED: Introduction.Step
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_FIELD_NUMBER: _ClassVar[int]
    CONFIRMATION_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    step: Introduction.Step
    element: bytes
    confirmation: bytes
    certificate: bytes
    session_id: bytes
    name: str
    detail: str
    def __init__(self, attempt: _Optional[int] = ..., step: _Optional[_Union[Introduction.Step, str]] = ..., element: _Optional[bytes] = ..., confirmation: _Optional[bytes] = ..., certificate: _Optional[bytes] = ..., session_id: _Optional[bytes] = ..., name: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class Admit(_message.Message):
    __slots__ = ("attempt",)
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    def __init__(self, attempt: _Optional[int] = ...) -> None: ...

class Charter(_message.Message):
    __slots__ = ("session_id", "revision", "expected_members", "context_tokens", "concurrency", "model", "roster", "objective", "draft", "division")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    DIVISION_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    revision: int
    expected_members: int
    context_tokens: int
    concurrency: int
    model: ModelReference
    roster: _containers.RepeatedCompositeFieldContainer[RosterEntry]
    objective: str
    draft: ModelReference
    division: str
    def __init__(self, session_id: _Optional[bytes] = ..., revision: _Optional[int] = ..., expected_members: _Optional[int] = ..., context_tokens: _Optional[int] = ..., concurrency: _Optional[int] = ..., model: _Optional[_Union[ModelReference, _Mapping]] = ..., roster: _Optional[_Iterable[_Union[RosterEntry, _Mapping]]] = ..., objective: _Optional[str] = ..., draft: _Optional[_Union[ModelReference, _Mapping]] = ..., division: _Optional[str] = ...) -> None: ...

class ModelReference(_message.Message):
    __slots__ = ("name", "digest", "dtype", "facts_json")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    FACTS_JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: str
    dtype: str
    facts_json: str
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[str] = ..., dtype: _Optional[str] = ..., facts_json: _Optional[str] = ...) -> None: ...

class RosterEntry(_message.Message):
    __slots__ = ("name", "fingerprint")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    name: str
    fingerprint: bytes
    def __init__(self, name: _Optional[str] = ..., fingerprint: _Optional[bytes] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("kind", "host", "port")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Candidate.Kind]
        HOST: _ClassVar[Candidate.Kind]
        SERVER_REFLEXIVE: _ClassVar[Candidate.Kind]
        PORT_MAPPED: _ClassVar[Candidate.Kind]
    KIND_UNSPECIFIED: Candidate.Kind
    HOST: Candidate.Kind
    SERVER_REFLEXIVE: Candidate.Kind
    PORT_MAPPED: Candidate.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    kind: Candidate.Kind
    host: str
    port: int
    def __init__(self, kind: _Optional[_Union[Candidate.Kind, str]] = ..., host: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("session_id", "member_json", "candidates", "problem", "epoch")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_JSON_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    member_json: str
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    problem: str
    epoch: int
    def __init__(self, session_id: _Optional[bytes] = ..., member_json: _Optional[str] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., problem: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class ReportsComplete(_message.Message):
    __slots__ = ("epoch", "reports", "fleet_json", "plan_json")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    FLEET_JSON_FIELD_NUMBER: _ClassVar[int]
    PLAN_JSON_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    reports: _containers.RepeatedCompositeFieldContainer[Signed]
    fleet_json: str
    plan_json: str
    def __init__(self, epoch: _Optional[int] = ..., reports: _Optional[_Iterable[_Union[Signed, _Mapping]]] = ..., fleet_json: _Optional[str] = ..., plan_json: _Optional[str] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("session_id", "epoch", "charter_revision", "reports", "fleet_json", "plan_json")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHARTER_REVISION_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    FLEET_JSON_FIELD_NUMBER: _ClassVar[int]
    PLAN_JSON_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    epoch: int
    charter_revision: int
    reports: _containers.RepeatedCompositeFieldContainer[Signed]
    fleet_json: str
    plan_json: str
    def __init__(self, session_id: _Optional[bytes] = ..., epoch: _Optional[int] = ..., charter_revision: _Optional[int] = ..., reports: _Optional[_Iterable[_Union[Signed, _Mapping]]] = ..., fleet_json: _Optional[str] = ..., plan_json: _Optional[str] = ...) -> None: ...

class CircuitRequest(_message.Message):
    __slots__ = ("epoch", "peer")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    peer: bytes
    def __init__(self, epoch: _Optional[int] = ..., peer: _Optional[bytes] = ...) -> None: ...

class CircuitGrant(_message.Message):
    __slots__ = ("epoch", "peer", "circuit_id", "key")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    CIRCUIT_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    peer: bytes
    circuit_id: bytes
    key: bytes
    def __init__(self, epoch: _Optional[int] = ..., peer: _Optional[bytes] = ..., circuit_id: _Optional[bytes] = ..., key: _Optional[bytes] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("epoch", "state", "loaded_bytes", "total_bytes", "edges", "detail", "candidates")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LOADED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    state: MemberState
    loaded_bytes: int
    total_bytes: int
    edges: _containers.RepeatedCompositeFieldContainer[EdgeState]
    detail: str
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    def __init__(self, epoch: _Optional[int] = ..., state: _Optional[_Union[MemberState, str]] = ..., loaded_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., edges: _Optional[_Iterable[_Union[EdgeState, _Mapping]]] = ..., detail: _Optional[str] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ...) -> None: ...

class EdgeState(_message.Message):
    __slots__ = ("peer", "path", "rtt_s")
    PEER_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    RTT_S_FIELD_NUMBER: _ClassVar[int]
    peer: bytes
    path: str
    rtt_s: float
    def __init__(self, peer: _Optional[bytes] = ..., path: _Optional[str] = ..., rtt_s: _Optional[float] = ...) -> None: ...

class MemberUpdate(_message.Message):
    __slots__ = ("member", "name", "progress")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    member: bytes
    name: str
    progress: Progress
    def __init__(self, member: _Optional[bytes] = ..., name: _Optional[str] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ...) -> None: ...

class Serve(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("reason", "returns")
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETURNS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    returns: bool
    def __init__(self, reason: _Optional[str] = ..., returns: _Optional[bool] = ...) -> None: ...

class EdgeLost(_message.Message):
    __slots__ = ("epoch", "peer")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    peer: bytes
    def __init__(self, epoch: _Optional[int] = ..., peer: _Optional[bytes] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    def __init__(self, session_id: _Optional[bytes] = ...) -> None: ...

class Hold(_message.Message):
    __slots__ = ("epoch", "absent")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    absent: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, epoch: _Optional[int] = ..., absent: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Closed(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Problem(_message.Message):
    __slots__ = ("code", "detail", "request")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    code: str
    detail: str
    request: str
    def __init__(self, code: _Optional[str] = ..., detail: _Optional[str] = ..., request: _Optional[str] = ...) -> None: ...
