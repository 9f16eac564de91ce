"""What runs on an engine: the engine protocol, its adapters, and the pool that hosts one."""
