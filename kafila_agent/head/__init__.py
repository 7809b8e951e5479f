"""The head: schedules sequences, launches them round the ring, samples, and makes text."""
