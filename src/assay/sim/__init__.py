"""What engines share: randomness, graphs, and later clocks, links, hardware and prices."""
