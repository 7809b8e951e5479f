"""NATs as nftables rules. One function holds what each behaviour of RFC 4787 means to Linux's conntrack."""

from __future__ import annotations

from tests.natlab.site import Site

_PING_AND_NEIGHBOURS = (
    "icmp type echo-request accept\n"
    "icmpv6 type { echo-request, nd-neighbor-solicit, nd-neighbor-advert, nd-router-advert } accept"
)


def firewall_rules() -> str:
    """A public host that admits only what answers it."""
    return f"""
    table inet fw {{
      chain input {{
        type filter hook input priority 0; policy drop;
        iifname lo accept
        ct state established,related accept
        {_PING_AND_NEIGHBOURS}
      }}
    }}"""


def loss_rules(sites: list[Site]) -> str:
    """Datagrams lost at random on each site's line, either way."""
    drops = [
        f"{way} {site.name} numgen random mod 100000 < {int(site.loss_percent * 1000)} drop"
        for site in sites
        if site.loss_percent
        for way in ("iifname", "oifname")
    ]
    chain = "type filter hook forward priority -10;"
    return "\n".join(["table inet lab {", "chain forward {", chain, *drops, "}", "}"])


def nat_rules(site: Site, lan: str, wan: str) -> str:
    """The NAT of ``site`` between the network ``lan`` (``192.168.3.``) and its outer address ``wan``.

    An endpoint-independent mapping is a map from inner to outer endpoint that lives as long as any of its flows;
    endpoint-independent and address-dependent filtering are DNAT over what was learnt from outgoing datagrams.
    Filtering by address and port is what conntrack does unasked. Unsolicited datagrams must be dropped: had they
    been accepted, they would leave a conntrack entry, and the member's own datagrams to that peer could no longer
    leave by its outer port.
    """
    life = f"timeout {site.mapping_life_s or 120}s"
    kept = "snat ip to ip saddr . udp sport map @outer" if site.maps_alike else ""
    ports = "1024-65535" if site.keeps_port else "20000-31999 fully-random"
    admit = {
        "endpoint": "dnat ip to udp dport map @inner",
        "address": "udp dport . ip saddr @spoken_to dnat ip to udp dport map @inner",
        "port": "continue",
    }[site.filtering]
    hairpin = f"iifname lan ip daddr {wan} meta l4proto udp dnat ip to udp dport map @inner"
    return f"""
    table ip nat {{
      map inner {{ type inet_service : ipv4_addr . inet_service; flags dynamic,timeout; size 65535; }}
      map outer {{
        type ipv4_addr . inet_service : ipv4_addr . inet_service; flags dynamic,timeout; size 65535;
      }}
      set spoken_to {{ type inet_service . ipv4_addr; flags dynamic,timeout; size 65535; }}
      chain incoming {{
        type nat hook prerouting priority dstnat;
        iifname wan ip daddr {wan} meta l4proto udp {admit}
        {hairpin if site.hairpins else ""}
      }}
      chain translate {{
        {kept}
        meta l4proto udp snat to {wan}:{ports}
      }}
      chain outgoing {{
        type nat hook postrouting priority srcnat;
        oifname lan ip saddr {lan}0/24 ct status dnat meta l4proto udp jump translate
        oifname wan meta l4proto udp jump translate
        oifname wan masquerade
      }}
      chain learn {{
        type filter hook postrouting priority 300;
        {_learn(wan, life)}
        oifname wan meta l4proto udp update @spoken_to {{ udp sport . ip daddr {life} }}
      }}
    }}
    table inet fw {{
      chain forward {{
        type filter hook forward priority 0; policy drop;
        {"meta l4proto udp drop" if site.blocks_udp else ""}
        {site.extra_rule}
        iifname wan oifname wan drop
        ct state established,related accept
        iifname lan accept
        ct status dnat accept
        {"" if site.ipv6_firewall else "meta nfproto ipv6 accept"}
      }}
      chain input {{
        type filter hook input priority 0; policy drop;
        ct state established,related accept
        {_PING_AND_NEIGHBOURS}
        iifname lan accept
      }}
    }}"""


def _learn(wan: str, life: str) -> str:
    return "\n".join(
        f"{out} meta l4proto udp ct direction {way} update @{table} {{ {key} {life} : {value} }}"
        for out in ("oifname wan", f"oifname lan ip saddr {wan}")
        for way in ("original", "reply")
        for table, key, value in (
            ("inner", "udp sport", f"ct {way} ip saddr . ct {way} proto-src"),
            ("outer", f"ct {way} ip saddr . ct {way} proto-src", "ip saddr . udp sport"),
        )
    )
