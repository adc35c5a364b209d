//! The help screen.

/// The function of each key.
pub(super) fn lines() -> Vec<String> {
    KEYS.lines().map(str::to_owned).collect()
}

const KEYS: &str = "\
Enter            the selected pod: what limpet describe says of it
l                its log, followed; c: next container, p: previous instance
e                the node's events
u, t             what the node and its pods use, and what is short
/                only the pods or events with this text; Esc: all again
j, k, arrows     down, up, aside; Ctrl-F, Ctrl-B, PgDn, PgUp: by a screen
g, G, Home, End  to the first, to the last; at its end a log is followed
q, Esc           back; q at the pods: quit
Ctrl-L           draw again, after noise on the line
Ctrl-Z, Ctrl-C   suspend, quit

Nothing is changed from here. Ages are those of the time at the top right,
when the last news came: while nothing happens, nothing is sent.";
