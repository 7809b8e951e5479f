import pytest

from kafila_rendezvous.limits import RecentCounts, source_of


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
