//! Run commands with a deadline.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use wait_timeout::ChildExt;

use crate::encode::CommandLine;

/// Maximum run time of one command. Open vSwitch's commands time out earlier by themselves.
const DEADLINE: Duration = Duration::from_secs(10);
/// Maximum output in bytes; a longer output is an error. A hundred thousand flow entries fit.
const MAX_OUTPUT_BYTES: u64 = 32 * 1024 * 1024;
/// Maximum length of a stored error message, in bytes.
const MAX_COMPLAINT_BYTES: usize = 512;

/// A command failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The command could not be started, or its pipes failed.
    #[error("{program}: {source}")]
    Io {
        /// The program.
        program: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// The command exceeded the deadline.
    #[error("{program} did not end within {} s", DEADLINE.as_secs())]
    Timeout {
        /// The program.
        program: &'static str,
    },
    /// The command exited with an error.
    #[error("{program}: {complaint}")]
    Failed {
        /// The program.
        program: &'static str,
        /// Its standard error, shortened.
        complaint: String,
    },
    /// The command's output exceeded the limit.
    #[error("{program} printed more than {MAX_OUTPUT_BYTES} bytes")]
    Output {
        /// The program.
        program: &'static str,
    },
}

/// Run a command and return its standard output.
///
/// # Errors
/// The command cannot be started, fails, prints too much, or is killed after ten seconds.
pub fn run(line: &CommandLine) -> Result<String, CommandError> {
    let program = line.program;
    let io = |source| CommandError::Io { program, source };
    let mut child = Command::new(program)
        .args(&line.args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(io)?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let input = line.stdin.clone();
    // A failed write is not an error here: the exit status reports a program that stops reading early.
    let writer = thread::spawn(move || stdin.map_or(Ok(()), |mut pipe| pipe.write_all(input.as_bytes())));
    let output = thread::spawn(move || read_all(stdout));
    let complaint = thread::spawn(move || read_all(stderr));
    let status = child.wait_timeout(DEADLINE).map_err(io)?;
    if status.is_none() {
        child.kill().map_err(io)?;
        child.wait().map_err(io)?;
    }
    let _ = writer.join();
    let output = output.join().unwrap_or_default();
    let complaint = complaint.join().unwrap_or_default();
    match status {
        None => Err(CommandError::Timeout { program }),
        Some(status) if !status.success() => Err(CommandError::Failed {
            program,
            complaint: shorten(program, &complaint, &status.to_string()),
        }),
        Some(_) if output.len() as u64 > MAX_OUTPUT_BYTES => Err(CommandError::Output { program }),
        Some(_) => Ok(output),
    }
}

fn read_all(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // After a read error, only the bytes read so far can be reported.
        let _ = pipe.take(MAX_OUTPUT_BYTES + 1).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// An error message as one line, without the program name that most programs prefix.
fn shorten(program: &str, complaint: &str, status: &str) -> String {
    let name = format!("{program}: ");
    let lines =
        complaint.lines().map(|line| line.trim().trim_start_matches(&name)).filter(|line| !line.is_empty());
    let text = lines.collect::<Vec<_>>().join("; ");
    let text = if text.is_empty() { status.to_owned() } else { text };
    text.chars().take(MAX_COMPLAINT_BYTES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(program: &'static str, args: &[&str], stdin: &str) -> CommandLine {
        CommandLine { program, args: args.iter().map(|a| (*a).to_owned()).collect(), stdin: stdin.to_owned() }
    }

    #[test]
    fn input_and_output_are_passed_unchanged() {
        let long = "x".repeat(300_000);
        assert_eq!(run(&line("cat", &[], &long)).unwrap(), long);
    }

    #[test]
    fn an_error_contains_the_message_of_the_program() {
        let error = run(&line("sh", &["-c", "echo sh: no >&2; exit 3"], "")).unwrap_err();
        assert_eq!(error.to_string(), "sh: no");
        let error = run(&line("sh", &["-c", "exit 3"], "")).unwrap_err();
        assert_eq!(error.to_string(), "sh: exit status: 3");
        assert!(matches!(run(&line("no-such-program", &[], "")), Err(CommandError::Io { .. })));
    }
}
