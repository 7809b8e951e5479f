"""What this machine measures about itself before any weight is loaded."""
