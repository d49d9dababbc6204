"""Files larger than memory: pages read past the page cache, row stores, graphs in compressed rows on disk."""
