"""The workers: they execute plans, one iteration per plan, and report what came out. They know no queue, no client."""
