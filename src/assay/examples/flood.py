"""A node of one's own: whoever hears the news for the first time decides on it and tells everybody."""

from assay.protocols.interface import Node


class Flood(Node):
    """Node 0 starts the news with its input."""

    seen = False

    def start(self, ctx):
        """Nobody else has anything to say yet."""
        if ctx.id == 0:
            ctx.broadcast(("news", ctx.input))

    def recv(self, ctx, src, msg):
        """Pass it on once."""
        if not self.seen:
            self.seen = True
            ctx.decide(msg[1])
            ctx.broadcast(msg)
