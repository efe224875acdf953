"""What every job is wired with: settings, environment, sources, sinks, topics, the Java runtime."""
