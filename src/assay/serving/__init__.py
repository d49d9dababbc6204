"""Serving: routing, caching, batching and provisioning of LLM replicas."""
