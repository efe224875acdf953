"""Logs of edge sites that wrote while offline: `merge` brings them together, `appending` says what is news in one."""
