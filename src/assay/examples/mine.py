"""A routing policy of one's own: least work ahead of the request, then the smaller batch."""


class Mine:
    """Runs beside the others in `assay compare serving`, and unchanged in front of real engines."""

    key = "mine"

    def route(self, request, fleet):
        """The instance with the fewest tokens to compute before this request's first one."""
        work = fleet.prefill_tokens + fleet.new_prefill_tokens(request)
        return fleet.argmin(work, fleet.batch_size)
