import pytest

from kafila_rendezvous.limits import Allowance, RecentCounts, source_network, source_of


@pytest.mark.parametrize(
    ("peer", "source"),
    [
        ("ipv4:192.0.2.7:4711", "192.0.2.7"),
        ("ipv6:%5B::1%5D:4711", "::/64"),
        ("ipv6:[2001:db8:1:2:3:4:5:6]:4711", "2001:db8:1:2::/64"),
        ("ipv6:%5B2001:db8:1:2::9%5D:4711", "2001:db8:1:2::/64"),
        ("ipv6:[::ffff:192.0.2.7]:4711", "192.0.2.7"),
        ("ipv6:%5Bfe80::1%252%5D:4711", "fe80::/64"),
        ("unix:/run/x", "unix:/run/x"),
    ],
)
def test_a_source_is_what_a_household_has(peer, source):
    assert source_of(peer) == source


def test_counts_forget():
    counts = RecentCounts(10.0)
    counts.add("a", 0.0)
    counts.add("b", 1.0)
    counts.add("a", 5.0)
    assert (counts.count("a", 9.0), counts.count("b", 9.0)) == (2, 1)
    assert (counts.count("a", 10.0), counts.count("a", 15.0)) == (1, 0)


def test_a_source_has_so_many_at_once_and_so_many_a_second():
    allowance = Allowance(per_s=2.0, at_once=3.0, sources=2)
    assert [allowance.spend("a", 0.0) for _ in range(4)] == [True, True, True, False]
    assert allowance.spend("b", 0.0)
    assert [allowance.spend("a", 0.5) for _ in range(2)] == [True, False]
    assert [allowance.spend("a", 100.0) for _ in range(4)] == [True, True, True, False]
    for number in range(100):
        allowance.spend(f"stranger {number}", 100.0)
    assert len(allowance._left) == 2


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("198.18.0.9", "198.18.0.9"),
        ("::ffff:198.18.0.9", "198.18.0.9"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("x", ""),
    ],
)
def test_a_household_is_one_address_or_one_prefix(host, network):
    assert source_network(host) == network
