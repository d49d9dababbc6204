"""The room of message-passing algorithms and of agents that interact."""
