"""The published figures that ours stand beside."""

from __future__ import annotations

IMBALANCE = {"planner": "1.4–1.8", "memory": "2.1–5.5", "uniform": "up to 10.6"}
UTILISATION = {"planner": "75–87 %", "memory": "below 50 %", "uniform": "below 50 %"}
GAIN_LAN = {"planner": "4.0", "memory": "2.5", "uniform": "2.0"}
GAIN = {
    "lan": GAIN_LAN,
    "us": dict.fromkeys(GAIN_LAN, "3.9–4.0"),
    "world": dict.fromkeys(GAIN_LAN, "3.5–4.0"),
}
NETWORK_SHARE = {"lan": "12 %", "us": "between", "world": "84–94 %"}
# Ordered pairs whose edge its rule expected to be relayed, and which then was direct.
MISPREDICTED = {("addrfilter", "restrictive"), ("restrictive", "addrfilter")}
