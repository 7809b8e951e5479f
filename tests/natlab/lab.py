"""A small internet on one machine: kernel NATs of chosen behaviour in network namespaces.

    inet  a router: every site has its own line to it, with the site's delay, jitter, loss and rate
    rv    the rendezvous's host, with two public addresses: 11.18.0.2 and .3, 2001:db8::2 and ::3
    NAME  a member's host, behind a NAT router of its own (NAME-nat) unless its class is public or firewall

The public addresses are of a range that programs take for global, as some routers map ports of no other. Nothing is
made in the root namespace and nothing leaves the others, so several labs run side by side with the same addresses.
Programs on them find the rendezvous by the name rv, in both families.
Needs root, iproute2, nftables, iptables (for its NFQUEUE target alone), conntrack and procps; no netem.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.natlab.namespace import FILES
from tests.natlab.rules import firewall_rules, loss_rules, nat_rules
from tests.natlab.site import Site

RENDEZVOUS, RENDEZVOUS_2 = "11.18.0.2", "11.18.0.3"
RENDEZVOUS_IPV6, RENDEZVOUS_2_IPV6 = "2001:db8::2", "2001:db8::3"
TOOLS = {
    "nft": "nftables",
    "iptables": "iptables",
    "ip": "iproute2",
    "conntrack": "conntrack",
    "sysctl": "procps",
}

_NAMES = f"127.0.0.1 localhost\n::1 localhost\n{RENDEZVOUS_IPV6} rv\n{RENDEZVOUS} rv\n"

_ROUTER = {
    "ipv4.ip_forward": 1,
    "ipv4.conf.all.send_redirects": 0,
    "ipv6.conf.all.forwarding": 1,
    "ipv6.conf.all.accept_dad": 0,  # no second of silence
    "ipv6.conf.default.accept_dad": 0,
    "bridge.bridge-nf-call-iptables": 0,  # they break hairpins
    "bridge.bridge-nf-call-ip6tables": 0,
}
_labs = itertools.count()


def why_not() -> str:
    """Why there can be no laboratory on this machine; empty if there can."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = sorted(package for tool, package in TOOLS.items() if shutil.which(tool) is None)
    if missing:
        return f"needs the packages {' '.join(missing)}"
    probe = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    return "" if probe.returncode == 0 else f"no network namespaces here: {probe.stderr.strip()}"


def _sh(command: Sequence[str], text: str = "") -> str:
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{text}\n{done.stderr}")
    return done.stdout


class Lab:
    """Name the members with ``add``, then enter: `with lab: lab.popen("a", [...])`."""

    def __init__(self) -> None:
        self.addresses: dict[str, list[str]] = {}
        self._prefix = f"kafila{os.getpid()}-{next(_labs)}"
        self._sites: dict[str, Site] = {}
        self._nodes: list[str] = []
        self._delayer: subprocess.Popen[str] | None = None
        self.add("rv", "public")

    def add(self, name: str, kind: str = "ordinary", **options: Any) -> None:
        """A member behind a NAT of class ``kind``; options are Site's; one host of its name unless ``hosts``."""
        options.setdefault("hosts", [name])
        self._sites[name] = Site(name, len(self._sites), kind, **options)

    def add_to_lan(self, name: str, site: str) -> None:
        """A member on the LAN of ``site``."""
        self._sites[site].hosts.append(name)

    def __enter__(self) -> Lab:
        _remove_abandoned()
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._remove()

    def command(self, node: str, command: Sequence[str]) -> list[str]:
        """``command``, to run on a node."""
        return ["ip", "netns", "exec", self.namespace(node), *command]

    def run(self, node: str, command: Sequence[str], text: str = "") -> str:
        """Run a command on a node to its end; its output. Raises RuntimeError if it fails."""
        return _sh(self.command(node, command), text)

    def popen(self, node: str, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process on a node; it ends with the lab."""
        return subprocess.Popen(self.command(node, command), **options)

    def forget_mappings(self, site: str) -> None:
        """The site's router reboots: its members get new outer ports."""
        self.run(
            f"{site}-nat",
            ["nft", "-f", "-"],
            "flush map ip nat inner\nflush map ip nat outer\nflush set ip nat spoken_to",
        )
        self.run(f"{site}-nat", ["conntrack", "-F"])

    def drop_incoming(self, node: str, what: str) -> None:
        """A host's own firewall drops ``what`` (of nftables)."""
        chain = "chain input { type filter hook input priority 0;"
        self.run(node, ["nft", "-f", "-"], f"table inet own {{ {chain} {what} drop; }}; }};")

    def block_udp(self, site: str) -> None:
        """From now on no UDP passes a site's router."""
        chain = "chain forward { type filter hook forward priority -20; meta l4proto udp drop; };"
        self.run(f"{site}-nat", ["nft", "-f", "-"], f"table inet blocked {{ {chain} }};")

    def move(self, host: str) -> None:
        """A host gets another IPv4 address on its LAN, as from a new lease."""
        old = self.addresses[host][0]
        network = old.rpartition(".")[0]
        address, gateway = f"{network}.99", f"{network}.1"
        self._ip(
            host,
            f"addr del {old}/24 dev eth0",
            f"addr add {address}/24 dev eth0",
            f"route replace default via {gateway}",
        )

    def cut(self, site: str, seconds: float) -> None:
        """For so long nothing crosses a site's line."""
        drops = f"iifname {site} drop; oifname {site} drop;"
        chain = f"chain forward {{ type filter hook forward priority 5; {drops} }};"
        self.run("inet", ["nft", "-f", "-"], f"table inet cut-{site} {{ {chain} }};")
        time.sleep(seconds)
        self.run("inet", ["nft", "delete", "table", "inet", f"cut-{site}"])

    def part(self, one: str, other: str) -> None:
        """Nothing crosses between two sites, until ``join``."""
        ways = ((one, other), (other, one))
        drops = "".join(f"iifname {a} oifname {b} drop; " for a, b in ways)
        chain = f"chain forward {{ type filter hook forward priority 5; {drops} }};"
        self.run("inet", ["nft", "-f", "-"], f"table inet part-{one} {{ {chain} }};")

    def join(self, one: str) -> None:
        """What ``part`` parted is joined again."""
        self.run("inet", ["nft", "delete", "table", "inet", f"part-{one}"])

    def delay(self, site: str, rtt_ms: float) -> None:
        """From now on a site is so far from the rendezvous and back, in a lab built with some delay."""
        self._sites[site].rtt_ms = rtt_ms
        self._set_delays({site: [rtt_ms / 2e3, 0.0, 0.0, 0.0]})

    def shuffle(self, site: str, late_share: float, copied_share: float) -> None:
        """Let some of a site's packets come late, behind later ones, and some twice, in a lab built with some delay."""
        self._set_delays({site: [self._sites[site].rtt_ms / 2e3, 0.0, late_share, copied_share]})

    def lose(self, site: str, percent: float) -> None:
        """From now on so many of a site's packets are lost, each way; 0: none."""
        self.run("inet", ["nft", "delete", "table", "inet", "lab"])
        self._sites[site].loss_percent = percent
        self.run("inet", ["nft", "-f", "-"], loss_rules(list(self._sites.values())))

    def _set_delays(self, delays: dict[str, list[float]]) -> None:
        assert self._delayer is not None
        assert self._delayer.stdin is not None
        self._delayer.stdin.write(json.dumps(delays) + "\n")
        self._delayer.stdin.flush()

    # Building

    def namespace(self, node: str) -> str:
        """The network namespace that a node is."""
        return f"{self._prefix}.{node}"

    def _ip(self, node: str, *lines: str) -> None:
        _sh(["ip", "-n", self.namespace(node), "-batch", "-"], "\n".join(lines) + "\n")

    def _build(self) -> None:
        sites = list(self._sites.values())
        routers = [f"{site.name}-nat" for site in sites if site.has_nat]
        self._nodes = ["inet", *routers, *(host for site in sites for host in site.hosts)]
        _sh(["ip", "-batch", "-"], "".join(f"netns add {self.namespace(node)}\n" for node in self._nodes))
        for node in self._nodes:
            self._ip(node, "link set lo up")
            files = FILES / self.namespace(node)
            files.mkdir(parents=True)
            (files / "hosts").write_text(_NAMES)
        self._make_router("inet")
        self._ip("inet", "route add blackhole default", "route add blackhole ::/0")
        for site in sites:
            if site.has_nat:
                self._build_nat(site)
            else:
                self._build_public(site)
        self._ip(
            "rv", f"addr add {RENDEZVOUS_2}/24 dev eth0", f"addr add {RENDEZVOUS_2_IPV6}/64 dev eth0 nodad"
        )
        self.run("inet", ["nft", "-f", "-"], loss_rules(sites))
        if any(site.rtt_ms or site.jitter_ms for site in sites):
            self._start_delayer(sites)

    def _make_router(self, node: str, **more: int) -> None:
        self.run(
            node, ["sysctl", "-qw", *(f"net.{key}={value}" for key, value in {**_ROUTER, **more}.items())]
        )

    def _join(self, node1: str, interface1: str, node2: str, interface2: str) -> None:
        peer = ("type", "veth", "peer", "name", interface2, "netns", self.namespace(node2))
        _sh(["ip", "link", "add", "name", interface1, "netns", self.namespace(node1), *peer])

    def _start_delayer(self, sites: list[Site]) -> None:
        for tables in ("iptables", "ip6tables"):  # nftables has no queue statement in every kernel
            queue = ["-A", "FORWARD", "-j", "NFQUEUE", "--queue-num", "0", "--queue-bypass"]
            self.run("inet", [tables, *queue])
        script = Path(__file__).with_name("delayer.py")
        self._delayer = self.popen(
            "inet",
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._set_delays(
            {s.name: [s.rtt_ms / 2e3, s.jitter_ms / 2e3, 0.0, 0.0] for s in sites if not s.behind}
        )
        assert self._delayer.stdout is not None
        if self._delayer.stdout.readline() != "ready\n":
            raise RuntimeError("the delayer did not start")

    def _build_uplink(self, site: Site, node: str, interface: str) -> str:
        """Join ``node`` to inet, or to the LAN of the site that it is behind; its address there."""
        number = site.number
        if site.behind:
            parent = self._sites[site.behind]
            far, near = f"{parent.name}-nat", f"100.64.{parent.number}"
            address, gateway = f"{near}.{number + 100}", f"{near}.1"
            self._join(far, site.name, node, interface)
            self._ip(far, f"link set dev {site.name} master lan up")
        else:
            far, address, gateway = "inet", f"11.18.{number}.2", f"11.18.{number}.1"
            net6 = f"2001:db8:0:{number}::"
            self._join(far, site.name, node, interface)
            self._ip(
                far,
                f"addr add {gateway}/24 dev {site.name}",
                f"addr add {net6}1/64 dev {site.name} nodad",
                f"link set dev {site.name} up",
                f"route add 2001:db8:1:{number}::/64 via {net6}2",
            )
            self._ip(
                node,
                f"addr add {net6}2/64 dev {interface} nodad",
                f"link set dev {interface} up",
                f"route add ::/0 via {net6}1",
            )
        self._ip(
            node,
            f"addr add {address}/24 dev {interface}",
            f"link set dev {interface} up",
            f"route add default via {gateway}",
        )
        for where, line, rate in ((node, interface, site.up_mbit_s), (far, site.name, site.down_mbit_s)):
            if rate:
                shape = f"rate {rate}mbit latency 100ms burst {max(4000, int(rate * 250))}".split()
                _sh(["tc", "-n", self.namespace(where), "qdisc", "add", "dev", line, "root", "tbf", *shape])
        return address

    def _build_public(self, site: Site) -> None:
        address = self._build_uplink(site, site.name, "eth0")
        self.addresses[site.name] = [address, f"2001:db8:0:{site.number}::2"]
        if site.filtering == "port":
            self.run(site.name, ["nft", "-f", "-"], firewall_rules())

    def _build_nat(self, site: Site) -> None:
        number, router = site.number, f"{site.name}-nat"
        life = {f"netfilter.nf_conntrack_udp_timeout{x}": site.mapping_life_s for x in ("", "_stream")}
        self._make_router(router, **(life if site.mapping_life_s else {}))
        is_carrier = any(other.behind == site.name for other in self._sites.values())
        lan = f"100.64.{number}." if is_carrier else f"192.168.{number}."
        lan6 = f"2001:db8:1:{number}::"
        self._ip(
            router,
            "link add lan up type bridge",
            f"addr add {lan}1/24 dev lan",
            f"addr add {lan6}1/64 dev lan nodad",
        )
        wan = self._build_uplink(site, router, "wan")
        for index, host in enumerate(site.hosts, 10):
            self._join(router, host, host, "eth0")
            self._ip(router, f"link set dev {host} master lan up")
            self._ip(host, "link set eth0 up")
            self.addresses[host] = []
            if 4 in site.families:
                self.addresses[host].append(f"{lan}{index}")
                self._ip(host, f"addr add {lan}{index}/24 dev eth0", f"route add default via {lan}1")
            if 6 in site.families:
                self.addresses[host].append(f"{lan6}{index}")
                self._ip(host, f"addr add {lan6}{index}/64 dev eth0 nodad", f"route add ::/0 via {lan6}1")
        self.run(router, ["nft", "-f", "-"], nat_rules(site, lan, wan))

    # Removing

    def _remove(self) -> None:
        _remove_namespaces([self.namespace(node) for node in self._nodes])
        if self._delayer is not None:
            self._delayer.wait()


def _remove_namespaces(wanted: Sequence[str]) -> None:
    """End every process in those that exist of ``wanted``, then remove them."""
    existing = [name for name in _sh(["ip", "netns", "list"]).split() if name in wanted]
    for number in (signal.SIGTERM, signal.SIGKILL):
        pids = [int(pid) for name in existing for pid in _sh(["ip", "netns", "pids", name]).split()]
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        _await_ends(pids, 0.2 if number is signal.SIGTERM else 10.0)
    _sh(["ip", "-batch", "-"], "".join(f"netns del {name}\n" for name in existing))
    for name in wanted:
        shutil.rmtree(FILES / name, ignore_errors=True)


def _await_ends(pids: Iterable[int], within_s: float) -> None:
    """Until these processes are gone, or so long."""
    deadline = time.monotonic() + within_s
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            os.close(descriptor)


def _remove_abandoned() -> None:
    """Remove the labs of processes that were killed."""
    for name in _sh(["ip", "netns", "list"]).split():
        owner = name.removeprefix("kafila").partition("-")[0]
        if name.startswith("kafila") and owner.isdigit() and not Path("/proc", owner).exists():
            with contextlib.suppress(RuntimeError):  # another worker is at it
                _remove_namespaces([name])
