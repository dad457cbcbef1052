"""Many runs: what to run (plans, cells), where (runners), how far it is (grid), and what its records say (tables)."""
