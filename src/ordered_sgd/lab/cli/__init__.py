"""The command `osgd`: the only place that prints, parses or exits; a file a command."""
