"""What components of the room share on top of a store: a log of versions, blobs of segments, batching."""
