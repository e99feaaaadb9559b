"""pytest plugin (entry point `pytest11`); filled in with the runner."""
