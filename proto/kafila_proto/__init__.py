"""What two programs say to each other: messages, datagrams, codes and certificates."""
