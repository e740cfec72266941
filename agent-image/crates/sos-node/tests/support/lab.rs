//! A private switch: a network namespace in which a separate Open vSwitch and the program under test run.
//!
//! Names are random, all objects are removed on drop, and only processes started here are stopped.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::sealed;

/// Maximum wait for a condition; long, because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(30);

/// Programs that the program under test runs, each behind a script that logs the command line.
const RECORDED: [&str; 4] = ["ovs-vsctl", "ovs-ofctl", "ip", "ethtool"];

/// Wait until a condition holds; panics with its name on timeout.
pub(crate) fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    wait_at_most(PATIENCE, what, holds);
}

/// Wait until a condition holds, with a limit that users may rely on.
pub(crate) fn wait_at_most(patience: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + patience;
    while !holds() {
        assert!(Instant::now() < end, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Run a command that must succeed, and return its output.
pub(crate) fn sh(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {complaint}", args.join(" "));
    String::from_utf8(output.stdout).unwrap()
}

/// Build the library that the image preloads into Open vSwitch; returns its path.
pub(crate) fn preloaded() -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ovs/buffers/src/lib.rs");
    let made = Command::new("rustc")
        .args(["--edition", "2024", "--crate-name", "sos_ovs_buffers", "--crate-type", "cdylib", "--out-dir"])
        .args([folder.as_os_str(), source.as_ref()])
        .status();
    assert!(made.unwrap().success());
    folder.join("libsos_ovs_buffers.so").display().to_string()
}

/// A network namespace.
pub(crate) struct Namespace {
    pub(crate) name: String,
}

impl Namespace {
    pub(crate) fn new(role: &str) -> Self {
        let name = format!("sosn-{role}-{:08x}", rand::random::<u32>());
        sh("ip", &["netns", "add", &name]);
        let namespace = Self { name };
        // Disable IPv6, because the kernel's own IPv6 traffic would be in every packet count.
        namespace.run(
            "sysctl",
            &["-qw", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"],
        );
        namespace.run("ip", &["link", "set", "lo", "up"]);
        namespace
    }

    pub(crate) fn run(&self, program: &str, args: &[&str]) -> String {
        sh("ip", &[&["netns", "exec", &self.name, program], args].concat())
    }

    pub(crate) fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]).args(args);
        command
    }

    /// Number of packets that a device has received.
    pub(crate) fn received(&self, device: &str) -> u64 {
        let links: Value =
            serde_json::from_str(&self.run("ip", &["-s", "-j", "link", "show", "dev", device])).unwrap();
        links[0]["stats64"]["rx"]["packets"].as_u64().unwrap()
    }

    /// Create a veth pair between two namespaces and set both ends up.
    pub(crate) fn wire(&self, device: &str, other: &Self, there: &str) {
        let ends = ["netns", &self.name, "type", "veth", "peer", "name", there, "netns", &other.name];
        sh("ip", &[&["link", "add", device][..], &ends].concat());
        self.run("ip", &["link", "set", device, "up"]);
        other.run("ip", &["link", "set", there, "up"]);
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.name]).status();
    }
}

/// A process killed on drop.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn signal(&self, signal: &str) {
        sh("kill", &[signal, &self.0.id().to_string()]);
    }

    /// Send SIGTERM; true if the exit status is success.
    pub(crate) fn terminate(mut self) -> bool {
        self.signal("-TERM");
        self.0.wait().unwrap().success()
    }

    pub(crate) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Another Open vSwitch in the same namespace, with a database of its own and a bridge in user space.
pub(crate) struct OtherSwitch {
    _vswitchd: Process,
    _ovsdb: Process,
    bridge: String,
    ns: String,
    folder: TempDir,
}

impl OtherSwitch {
    pub(crate) fn start(ns: &Namespace, bridge: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("sosn-other-").tempdir().unwrap();
        let path = |part: &str| folder.path().join(part).display().to_string();
        sh("ovsdb-tool", &["create", &path("conf.db"), "/usr/share/openvswitch/vswitch.ovsschema"]);
        let daemon = |program: &str, args: &[&str]| {
            let control = format!("--unixctl={}", path(&format!("{program}.ctl")));
            let mut command = ns.command(program, args);
            command.arg(control).arg("--no-chdir").env("OVS_RUNDIR", folder.path());
            Process(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
        };
        let ovsdb =
            daemon("ovsdb-server", &[&path("conf.db"), &format!("--remote=punix:{}", path("db.sock"))]);
        let database = format!("unix:{}", path("db.sock"));
        wait_until("the other ovsdb-server", || UnixStream::connect(path("db.sock")).is_ok());
        let vsctl = [format!("--db={database}"), "--timeout=20".to_owned()];
        sh("ovs-vsctl", &[&vsctl[0], "--no-wait", "init"]);
        let vswitchd = daemon("ovs-vswitchd", &[&database]);
        let add = ["add-br", bridge, "--", "set", "Bridge", bridge, "datapath_type=netdev"];
        sh("ovs-vsctl", &[&[vsctl[0].as_str(), vsctl[1].as_str()][..], &add].concat());
        Self { _vswitchd: vswitchd, _ovsdb: ovsdb, bridge: bridge.to_owned(), ns: ns.name.clone(), folder }
    }

    /// True if the bridge exists, as a device and for OpenFlow.
    pub(crate) fn forwards(&self) -> bool {
        let socket = format!("unix:{}", self.folder.path().join(format!("{}.mgmt", self.bridge)).display());
        sh("ip", &["-n", &self.ns, "link", "show", "dev", &self.bridge]);
        sh("ovs-ofctl", &["dump-flows", &socket]).contains("NORMAL")
    }
}

/// The switch.
pub(crate) struct Lab {
    script: Option<Process>,
    // Fields are dropped in this order: processes before their namespace and folder.
    vswitchd: Option<Process>,
    ovsdb: Option<Process>,
    pub(crate) ns: Namespace,
    folder: TempDir,
}

impl Lab {
    pub(crate) fn new(tso: bool) -> Self {
        let folder = tempfile::Builder::new().prefix("sosn-").tempdir().unwrap();
        let mut lab = Self { script: None, vswitchd: None, ovsdb: None, ns: Namespace::new("sw"), folder };
        for part in ["run", "bin", "state"] {
            fs::create_dir(lab.path(part)).unwrap();
        }
        lab.record_commands();
        sh(
            "ovsdb-tool",
            &["create", lab.text("run/conf.db").as_str(), "/usr/share/openvswitch/vswitch.ovsschema"],
        );
        lab.start_ovsdb();
        lab.vsctl(&["--no-wait", "init"]);
        lab.vsctl(&[
            "--no-wait",
            "set",
            "Open_vSwitch",
            ".",
            &format!("other_config:userspace-tso-enable={tso}"),
        ]);
        lab.start_vswitchd();
        lab
    }

    pub(crate) fn path(&self, part: &str) -> PathBuf {
        self.folder.path().join(part)
    }

    fn text(&self, part: &str) -> String {
        self.path(part).display().to_string()
    }

    fn record_commands(&self) {
        for program in RECORDED {
            let path = self.path("bin").join(program);
            let real = sh("sh", &["-c", &format!("command -v {program}")]);
            let script = format!(
                "#!/bin/sh\necho \"{program} $*\" >> {}\nexec {} \"$@\"\n",
                self.text("commands"),
                real.trim()
            );
            fs::write(&path, script).unwrap();
            sh("chmod", &["+x", path.to_str().unwrap()]);
        }
    }

    /// Commands that change the node, among all commands of the program under test since the last call.
    pub(crate) fn changes(&self) -> Vec<String> {
        let all = fs::read_to_string(self.path("commands")).unwrap_or_default();
        let _ = fs::remove_file(self.path("commands"));
        let looks = [" list ", " dump-flows ", " show", " parse-flows ", " -k ", "netns exec"];
        all.lines().filter(|line| !looks.iter().any(|look| line.contains(look))).map(str::to_owned).collect()
    }

    fn daemon(&self, program: &str, args: &[&str]) -> Process {
        let log = fs::File::create(self.path(&format!("{program}.log"))).unwrap();
        let control = format!("--unixctl={}", self.text(&format!("run/{program}.ctl")));
        let mut command = self.ns.command(program, args);
        command.arg(control).arg("--no-chdir").env("OVS_RUNDIR", self.path("run"));
        Process(command.stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }

    pub(crate) fn start_ovsdb(&mut self) {
        let remote = format!("--remote=punix:{}", self.text("run/db.sock"));
        self.ovsdb = Some(self.daemon("ovsdb-server", &[&self.text("run/conf.db"), &remote]));
        // The socket exists a moment before the server listens on it.
        wait_until("ovsdb-server", || UnixStream::connect(self.path("run/db.sock")).is_ok());
    }

    pub(crate) fn start_vswitchd(&mut self) {
        let process = self.daemon("ovs-vswitchd", &[&format!("unix:{}", self.text("run/db.sock"))]);
        self.vswitchd = Some(process);
    }

    pub(crate) fn kill_vswitchd(&mut self) {
        self.vswitchd.take().unwrap().kill();
    }

    pub(crate) fn kill_ovsdb(&mut self) {
        self.ovsdb.take().unwrap().kill();
    }

    pub(crate) fn kill_ovs(&mut self) {
        self.kill_vswitchd();
        self.kill_ovsdb();
    }

    /// Send a signal to the switch's daemon; the lab keeps the process.
    pub(crate) fn signal_vswitchd(&self, signal: &str) {
        self.vswitchd.as_ref().unwrap().signal(signal);
    }

    /// Send a signal to the database; the lab keeps the process.
    pub(crate) fn signal_ovsdb(&self, signal: &str) {
        self.ovsdb.as_ref().unwrap().signal(signal);
    }

    pub(crate) fn start_ovs(&mut self) {
        self.start_ovsdb();
        self.start_vswitchd();
    }

    /// Start Open vSwitch as its image does, in place of the daemons started before.
    pub(crate) fn start_script(&mut self) {
        self.start_script_with(&[]);
    }

    /// Start Open vSwitch as [`Self::start_script`] does, with additional environment variables.
    pub(crate) fn start_script_with(&mut self, environment: &[(&str, &str)]) {
        if self.ovsdb.is_some() {
            self.kill_ovs();
        }
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ovs/start.sh");
        let log = fs::File::create(self.path("start.log")).unwrap();
        let mut command = self.ns.command("bash", &[script, &self.text("run")]);
        command.envs(environment.iter().copied());
        self.script = Some(Process(command.stdout(Stdio::null()).stderr(log).spawn().unwrap()));
    }

    /// Send SIGTERM to the start script, as the kubelet does.
    pub(crate) fn terminate_script(&self) {
        self.script.as_ref().unwrap().signal("-TERM");
    }

    /// Wait for the end of the start script, which must be successful.
    pub(crate) fn await_script(&mut self) {
        assert!(self.script.take().unwrap().0.wait().unwrap().success(), "{}", self.script_log());
    }

    /// Stop the start script as kubelet does, by SIGTERM.
    pub(crate) fn stop_script(&mut self) {
        assert!(self.script.take().unwrap().terminate(), "{}", self.script_log());
    }

    /// Send a signal to the ovs-vswitchd that the script has started.
    pub(crate) fn signal_switch_of_script(&self, signal: &str) {
        let pid = fs::read_to_string(self.path("run/ovs-vswitchd.pid")).unwrap();
        sh("kill", &[signal, pid.trim()]);
    }

    /// Kill the ovs-vswitchd that the script has started, and wait until the script exits.
    pub(crate) fn kill_switch_of_script(&mut self) {
        self.signal_switch_of_script("-KILL");
        let mut script = self.script.take().unwrap();
        assert_eq!(script.0.wait().unwrap().code(), Some(1), "{}", self.script_log());
    }

    fn script_log(&self) -> String {
        let log = fs::read_to_string(self.path("start.log")).unwrap_or_default();
        log.lines()
            .filter(|line| line.contains(".sh") || line.starts_with("ovs-"))
            .collect::<Vec<_>>()
            .join("\n")
    }

    pub(crate) fn vsctl(&self, args: &[&str]) -> String {
        let database = format!("--db=unix:{}", self.text("run/db.sock"));
        sh("ovs-vsctl", &[&["--timeout=20", &database][..], args].concat()).trim().to_owned()
    }

    fn bridge(&self) -> String {
        format!("unix:{}", self.text("run/br-sos.mgmt"))
    }

    pub(crate) fn ofctl(&self, command: &str, rest: &[&str]) -> String {
        let version = if command == "show" || command == "mod-port" { "OpenFlow10" } else { "OpenFlow13" };
        sh("ovs-ofctl", &[&["-O", version, command, &self.bridge()][..], rest].concat())
    }

    /// All entries of the bridge as printed, sorted.
    pub(crate) fn flows(&self) -> Vec<String> {
        let output = Command::new("ovs-ofctl")
            .args(["-O", "OpenFlow13", "--no-stats", "--no-names", "dump-flows", &self.bridge()])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let mut flows: Vec<String> = text.lines().map(|line| line.trim().to_owned()).collect();
        flows.sort();
        flows
    }

    pub(crate) fn no_flood(&self, port: &str) -> bool {
        sos_node::encode::parse_ports(&self.ofctl("show", &[]))[port].no_flood
    }

    pub(crate) fn configure(&self, document: Value) {
        let path = self.path("config.json");
        fs::write(path.with_extension("new"), sealed(document)).unwrap();
        fs::rename(path.with_extension("new"), path).unwrap();
    }

    pub(crate) fn node_command(&self, extra: &[&str]) -> Command {
        let path = format!("{}:{}", self.text("bin"), std::env::var("PATH").unwrap());
        let (config, state, rundir) = (self.text("config.json"), self.text("state"), self.text("run"));
        let status = self.text("status.json");
        let args = [
            "--config",
            &config,
            "--node",
            "n1",
            "--state",
            &state,
            "--ovs-rundir",
            &rundir,
            "--status-file",
            &status,
        ];
        let mut command = self.ns.command(env!("CARGO_BIN_EXE_sos-node"), &[&args[..], extra].concat());
        command.env("PATH", path);
        command
    }

    /// Apply a config once.
    pub(crate) fn apply(&self, document: Value) -> Output {
        self.configure(document);
        self.once()
    }

    pub(crate) fn once(&self) -> Output {
        self.node_command(&["--once"]).output().unwrap()
    }

    /// Apply a config, which must succeed.
    pub(crate) fn must_apply(&self, document: Value) {
        let output = self.apply(document);
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{log}");
    }

    /// Start the loop.
    pub(crate) fn start_node(&self) -> Process {
        self.start_node_with(&[])
    }

    /// Start the loop with its HTTP server, for [`Self::http`].
    pub(crate) fn serve_node(&self) -> Process {
        self.start_node_with(&["--listen", "127.0.0.1:9466"])
    }

    /// Start the loop with further arguments.
    pub(crate) fn start_node_with(&self, extra: &[&str]) -> Process {
        let log = fs::File::create(self.path("node.log")).unwrap();
        Process(self.node_command(extra).stderr(log).spawn().unwrap())
    }

    /// The HTTP answer of the program under test, with headers; empty while the program does not listen.
    pub(crate) fn http(&self, path: &str) -> String {
        self.http_from("test", path)
    }

    /// The same for a client with this User-Agent.
    pub(crate) fn http_from(&self, agent: &str, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.0\\r\\nUser-Agent: {agent}\\r\\n\\r\\n");
        let script = format!("exec 3<>/dev/tcp/127.0.0.1/9466 && printf '{request}' >&3 && cat <&3");
        let output = self.ns.command("bash", &["-c", &script]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn status(&self) -> Value {
        let text = fs::read_to_string(self.path("status.json")).unwrap_or_else(|_| "null".to_owned());
        serde_json::from_str(&text).unwrap()
    }

    pub(crate) fn wait_for_state(&self, state: &str) {
        wait_until(&format!("state {state}"), || self.status()["state"] == state);
    }

    /// A host on the bridge, added by a third party such as a CNI plugin.
    pub(crate) fn host(&self, port: &str, address: &str) -> Namespace {
        let host = Namespace::new("h");
        self.ns.wire(port, &host, "e0");
        host.run("ip", &["addr", "add", address, "dev", "e0"]);
        self.vsctl(&["add-port", "br-sos", port]);
        host
    }

    pub(crate) fn has_device(&self, name: &str) -> bool {
        self.ns.command("ip", &["link", "show", "dev", name]).output().unwrap().status.success()
    }
}

impl Drop for Lab {
    /// Terminates the start script, which then stops its daemons.
    fn drop(&mut self) {
        if let Some(script) = self.script.take() {
            script.terminate();
        }
    }
}

/// True if a folder contains exactly the named files.
pub(crate) fn holds_only(folder: &Path, names: &[&str]) -> bool {
    let found = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    found.collect::<std::collections::BTreeSet<_>>() == names.iter().map(|n| (*n).to_owned()).collect()
}

impl From<Child> for Process {
    fn from(child: Child) -> Self {
        Self(child)
    }
}
