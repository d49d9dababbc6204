"""The crash lab: kill a component at every change it makes to its store, restart it, and ask whether its rules hold."""
