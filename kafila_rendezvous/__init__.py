"""The rendezvous: introduces members, plans, and relays ciphertext. It never holds a key of an edge."""
