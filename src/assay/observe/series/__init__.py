"""Long series: trend, cycles that come and go, rest; and forecasts from the parts."""
