"""What a scheduling policy would do with a trace of jobs, without a single GPU."""
