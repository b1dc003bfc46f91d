"""Stage `power`: instance size, replicas, cold starts, power caps, and what they take in energy."""
