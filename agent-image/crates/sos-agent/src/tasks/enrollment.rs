//! Exchanges of an enrolled machine with agents of its cluster: it reports its state, and receives its agent-config (spec/card.md section 5).

use std::io::ErrorKind;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sos_daemon::bugs::fence;
use sos_wire::card::HEADER_LEN;
use sos_wire::{CardAnswer, InstallationId};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::{info, warn};

use crate::context::AgentContext;
use crate::documents::config::AgentConfig;
use crate::documents::config::source::{SourceError, load};
use crate::documents::enrollment::Enrollment;
use crate::documents::enrollment::key_source::KeySource;
use crate::documents::enrollment::offer::{
    Answered, Dialogue, ExchangeError, MachineReport, Sent, endpoints,
};
use crate::documents::enrollment::state::{State, StateError};

/// Pause between two exchanges: the cluster considers a machine disconnected that was silent for 7 s.
const EXCHANGE_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum duration of an exchange.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of agents tried in one round.
const ATTEMPTS: usize = 2;
/// Time for which a machine that cannot start with its configuration waits for another one, before it tries again.
const RECOVERY: Duration = Duration::from_secs(10);

/// Reason why a machine cannot start with its enrollment.
#[derive(Debug, thiserror::Error)]
pub enum EnrollmentError {
    /// The enrollment file is unusable.
    #[error(transparent)]
    File(#[from] SourceError),
    /// The state folder is unusable.
    #[error(transparent)]
    State(#[from] StateError),
    /// No runtime for the first exchange.
    #[error("cannot start the runtime: {0}")]
    Runtime(std::io::Error),
}

/// Reason why one agent did not give an Answer that can be used.
#[derive(Debug, thiserror::Error)]
enum AttemptError {
    #[error("{0}")]
    Network(std::io::Error),
    #[error("no answer within {} s", EXCHANGE_TIMEOUT.as_secs())]
    TimedOut,
    #[error("connection closed without an answer: the agent does not know this pairing, or the key")]
    Refused,
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    #[error(transparent)]
    State(#[from] StateError),
}

/// A machine with its enrollment and the state of its exchanges.
#[derive(Debug)]
pub struct Machine {
    file: PathBuf,
    enrollment: Enrollment,
    state: State,
    dialogue: Dialogue,
    /// Generation of the agent-config that was received last.
    received: u64,
    /// Reason why the agent-config of the last Answer cannot be used; "" if it can.
    unusable: String,
    /// Id of the key that the cluster has used last; 0 before the first Answer.
    agreed: Arc<AtomicU16>,
    turn: usize,
    problem: Option<String>,
}

impl Machine {
    /// Reads the enrollment, and opens the state folder.
    ///
    /// # Errors
    /// The enrollment or the folder cannot be used.
    pub fn open(file: &Path, folder: &Path) -> Result<Self, EnrollmentError> {
        let enrollment = Enrollment::load(file)?;
        let state = State::open(folder, enrollment.pairing, InstallationId(rand::random()))?;
        let received = load(&state.received(), &enrollment.machine).map_or(0, |config| config.generation);
        let dialogue = Dialogue::new(state.installation);
        let (file, agreed) = (file.to_owned(), Arc::default());
        let unusable = String::new();
        Ok(Self { file, enrollment, state, dialogue, received, unusable, agreed, turn: 0, problem: None })
    }

    /// Source of the machine's keys.
    #[must_use]
    pub fn key_source(&self) -> KeySource {
        KeySource::Enrollment(self.file.clone(), Arc::clone(&self.agreed))
    }

    /// Name of the machine, which is the node of its agent-config.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.enrollment.machine
    }

    /// Path of the received agent-config.
    #[must_use]
    pub fn config_path(&self) -> PathBuf {
        self.state.received()
    }

    /// Waits until there is an agent-config. Called before the process has threads.
    ///
    /// # Errors
    /// There is no runtime for the exchange. An exchange that fails is repeated forever, and each new cause is logged.
    pub fn wait_for_config(&mut self) -> Result<(), EnrollmentError> {
        if self.received > 0 {
            return Ok(());
        }
        info!(machine = self.name(), "waiting for the first configuration from the cluster");
        self.exchange_until("", None)
    }

    /// Reports why the agent cannot start with its configuration, and receives a newer one, within [`RECOVERY`]. Without this, a machine
    /// whose configuration names an interface that does not exist could not receive the corrected one.
    ///
    /// # Errors
    /// There is no runtime for the exchange.
    pub fn report_failed_start(&mut self, problem: &str) -> Result<(), EnrollmentError> {
        self.exchange_until(problem, Some(Instant::now() + RECOVERY))
    }

    /// Exchanges until an agent-config has been received, or until a deadline.
    fn exchange_until(&mut self, problem: &str, deadline: Option<Instant>) -> Result<(), EnrollmentError> {
        let before = self.received;
        let waits = |machine: &Self| {
            machine.received == before && deadline.is_none_or(|deadline| Instant::now() < deadline)
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(EnrollmentError::Runtime)?.block_on(async {
            while waits(self) {
                self.round(None, problem).await;
                if waits(self) {
                    sleep(EXCHANGE_INTERVAL).await;
                }
            }
        });
        Ok(())
    }

    /// Exchanges with one agent of the cluster; tries the next one if it does not answer. `config`: the configuration in force. `problem`: the
    /// reason why a received one is not in force.
    async fn round(&mut self, config: Option<&AgentConfig>, problem: &str) {
        let unread = self.read_again().err();
        let report = MachineReport::new(config, if problem.is_empty() { &self.unusable } else { problem });
        let exchanged = self.exchange(config, &report).await;
        self.log_change(unread.or(exchanged));
    }

    /// Returns the reason why no agent answered, or the warning of an Answer.
    async fn exchange(&mut self, config: Option<&AgentConfig>, report: &MachineReport) -> Option<String> {
        let agents = endpoints(&self.enrollment, config);
        let mut problem = None;
        for _ in 0..ATTEMPTS.min(agents.len()) {
            let agent = agents[self.turn % agents.len()];
            match self.attempt(agent, report).await {
                Ok(warning) => return warning.map(|warning| format!("{agent} {warning}")),
                // Every agent has the same agent-config.
                Err(error @ AttemptError::Exchange(ExchangeError::Config(_))) => {
                    self.unusable = error.to_string();
                    return Some(format!("{agent}: {error}"));
                }
                Err(error) => {
                    self.turn = self.turn.wrapping_add(1);
                    if matches!(error, AttemptError::Refused) {
                        self.dialogue.refused();
                    }
                    problem = Some(format!("{agent}: {error}"));
                }
            }
        }
        problem
    }

    /// Reads the enrollment again, for keys of a rotation and agents that have changed.
    fn read_again(&mut self) -> Result<(), String> {
        let next = Enrollment::load(&self.file).map_err(|error| error.to_string())?;
        if next.pairing != self.enrollment.pairing || next.machine != self.enrollment.machine {
            return Err(format!(
                "{} is another enrollment: restart the agent to apply it",
                self.file.display()
            ));
        }
        self.enrollment = next;
        Ok(())
    }

    async fn attempt(
        &mut self,
        agent: SocketAddrV4,
        report: &MachineReport,
    ) -> Result<Option<&'static str>, AttemptError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let sent = self.dialogue.offer(&self.enrollment, report, now_ms, rand::random());
        let answer = timeout(EXCHANGE_TIMEOUT, ask(agent, &sent));
        let answer = answer.await.unwrap_or(Err(AttemptError::TimedOut))?;
        self.dialogue.answered();
        let judged = fence(|| self.dialogue.judge(&sent, &answer, &self.enrollment.machine, self.received));
        let Answered { document, not_newer } =
            judged.unwrap_or_else(|| Err(ExchangeError::Config("a bug of the agent".to_owned())))?;
        self.agreed.store(sent.key_id.as_u16(), Ordering::Relaxed);
        self.unusable.clear();
        if let Some(document) = document {
            self.state.store(&document)?;
            self.received = load(&self.config_path(), self.name()).map_or(0, |config| config.generation);
            info!(generation = self.received, %agent, "configuration received");
        }
        Ok(not_newer.then_some("has a later report of this machine: has the machine's clock been set back?"))
    }

    /// Logs a problem when it begins, changes or ends.
    fn log_change(&mut self, problem: Option<String>) {
        if self.problem == problem {
            return;
        }
        match &problem {
            Some(problem) => warn!(problem, "exchange with the cluster; retrying"),
            None => info!("the cluster answers again"),
        }
        self.problem = problem;
    }
}

/// Sends one Offer and reads its Answer, which is bounded by its header.
async fn ask(agent: SocketAddrV4, sent: &Sent) -> Result<Vec<u8>, AttemptError> {
    let mut stream = TcpStream::connect(agent).await.map_err(AttemptError::Network)?;
    stream.write_all(&sent.message).await.map_err(AttemptError::Network)?;
    let mut header = [0; HEADER_LEN];
    stream.read_exact(&mut header).await.map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => AttemptError::Refused,
        _ => AttemptError::Network(error),
    })?;
    let length = CardAnswer::message_len(&header).map_err(ExchangeError::from)?;
    let mut answer = vec![0; length];
    answer[..HEADER_LEN].copy_from_slice(&header);
    stream.read_exact(&mut answer[HEADER_LEN..]).await.map_err(AttemptError::Network)?;
    Ok(answer)
}

/// Exchanges with the cluster, forever. A failure does not end the task: the agent also relays without the cluster.
pub async fn follow(context: Arc<AgentContext>, mut machine: Machine) {
    let mut ticks = interval(EXCHANGE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        machine.round(Some(&context.config()), &context.config_problem()).await;
    }
}
