//! Talking to the person at the terminal, who may have gone away.

use std::io::{BufRead as _, IsTerminal as _, Write as _, stderr, stdin, stdout};

use tokio::sync::oneshot;

/// A line of progress or of the summary.
pub(crate) fn say(line: &str) {
    // When nobody can read it there is nobody to tell.
    let _ = writeln!(stdout(), "{line}");
}

/// A line about what went wrong.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}

/// How this program is called, for lines that are to be copied.
pub(crate) fn program() -> &'static str {
    // Cargo sets it for what it runs.
    if std::env::var_os("CARGO").is_some() { "cargo run --" } else { "ragmux" }
}

/// Whether somebody can be asked.
pub(crate) fn is_interactive() -> bool {
    stdin().is_terminal() && stdout().is_terminal()
}

/// Asks; everything but a clear yes is a no.
pub(crate) async fn confirm(question: &str) -> bool {
    let _ = write!(stdout(), "{question} [y/N] ").and_then(|()| stdout().flush());
    let (answered, answer) = oneshot::channel();
    // Reading a terminal cannot be given up, so it is left to a thread that ends with the process.
    std::thread::spawn(move || {
        let mut line = String::new();
        // Nobody may wait for it any more.
        let _ = answered.send(stdin().lock().read_line(&mut line).map(|_| line));
    });
    matches!(answer.await, Ok(Ok(line)) if matches!(line.trim(), "y" | "Y" | "yes"))
}
