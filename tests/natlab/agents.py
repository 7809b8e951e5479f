"""Agents of a laboratory, forked from one process that has imported what they need once, each settled at its node.

A program for fleet.py alone: kafila_agent/ctl/local_agents.py, asked for each agent's ``namespace`` as well.
"""

from __future__ import annotations

from kafila_agent.ctl.local_agents import main
from tests.natlab.namespace import settle

if __name__ == "__main__":
    main(lambda agent: settle(agent["namespace"]))
