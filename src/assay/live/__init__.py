"""Where components meet the real world: the gateway, the mock engine."""
