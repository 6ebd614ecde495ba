//! A real PostgreSQL as a child process: a cluster of its own in a temporary directory, on a socket there and on no port but for TLS, never as root.
//!
//! The server's programs are the system's: this looks for them, and installs them only where that is one command of root's ([`bring`]).

use std::{
    fs,
    net::TcpListener,
    os::unix::{
        fs::{PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage};

use crate::{child::Child, components::watch, control_plane::run_dir::RunDir, eventually, progress::Progress};

/// It accepts connections in a second; under load it may wait for its turn.
const ACCEPTS_WITHIN: Duration = Duration::from_mins(1);
/// A fast shutdown waits for nobody.
const ENDS_WITHIN: Duration = Duration::from_secs(30);
/// The role and its password.
const USER: &str = "operetta";
const PASSWORD: &str = "not a secret: of a cluster that lives for one test";
/// The database that `initdb` makes.
const DBNAME: &str = "postgres";

/// Counts the servers of this process, for their names.
static STARTED: AtomicUsize = AtomicUsize::new(0);

/// A server at work. It ends with this value, and its data with it.
#[derive(Debug)]
pub struct Postgres {
    name: String,
    programs: PathBuf,
    directory: TempDir,
    output: PathBuf,
    tls: Option<Tls>,
    child: Child,
}

/// How a server is reached over TLS.
#[derive(Debug)]
pub struct Tls {
    /// On 127.0.0.1.
    pub port: u16,
    /// Its certificate, which is its own root.
    pub certificate: PathBuf,
}

/// Where the server's programs are. Installs them where they are missing and root has apt-get; elsewhere says how a person does.
pub fn bring(progress: &Progress) -> Result<PathBuf> {
    // Tests that want them at the same time install them once.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let root = rustix::process::geteuid().is_root();
    match programs() {
        Err(_)
            if root
                && std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
                    .any(|place| place.join("apt-get").is_file()) => {}
        found => return found,
    }
    let mut step = progress.step("PostgreSQL");
    for arguments in [&["update", "-qq"][..], &["install", "-y", "-qq", "postgresql"]] {
        watch(Command::new("apt-get").args(arguments).env("DEBIAN_FRONTEND", "noninteractive"), &mut step)?;
    }
    step.done("installed");
    programs()
}

impl Postgres {
    /// Starts an empty server.
    pub async fn start(run: &RunDir) -> Result<Self> {
        Self::begin(run, false).await
    }

    /// Starts an empty server that is reached at a port as well, over TLS.
    pub async fn start_with_tls(run: &RunDir) -> Result<Self> {
        Self::begin(run, true).await
    }

    async fn begin(run: &RunDir, tls: bool) -> Result<Self> {
        let programs = bring(&Progress::stderr())?;
        // A socket's path has at most 107 bytes, so it lies in no directory of ours.
        let directory = tempfile::Builder::new().prefix("operetta-pg-").tempdir().context("make a directory")?;
        let secret = directory.path().join("password");
        fs::write(&secret, PASSWORD).context("write the password")?;
        let tls = tls.then(|| certify(directory.path())).transpose()?;
        give_away(directory.path())?;
        give_away(&secret)?;
        let mut initdb = command(&programs.join("initdb"), directory.path())?;
        initdb.args(["--no-sync", "--no-locale", "--encoding=UTF8", "--auth=scram-sha-256", "--username", USER]);
        initdb.arg("--pwfile").arg(&secret).arg("--pgdata").arg(directory.path().join("data"));
        let made = initdb.output().with_context(|| format!("run {}", initdb.get_program().display()))?;
        ensure!(made.status.success(), "initdb failed:\n{}", String::from_utf8_lossy(&made.stderr));
        let name = format!("postgres-{}", STARTED.fetch_add(1, Ordering::Relaxed));
        let output = run.path().join(format!("{name}.log"));
        let child = serve(run, &name, &programs, directory.path(), &output, tls.as_ref())?;
        let mut server = Self { name, programs, directory, output, tls, child };
        server.accepts().await?;
        Ok(server)
    }

    /// Stops it; its data stay.
    pub async fn stop(&mut self) -> Result<()> {
        self.child.signal(Signal::INT)?;
        self.child.ended(ENDS_WITHIN).await.map(drop)
    }

    /// Starts it again.
    pub async fn start_again(&mut self, run: &RunDir) -> Result<()> {
        let (programs, directory) = (&self.programs, self.directory.path());
        self.child = serve(run, &self.name, programs, directory, &self.output, self.tls.as_ref())?;
        self.accepts().await
    }

    /// The environment that leads a host here, for `env: PSQL`.
    pub fn environment(&self) -> [(String, String); 4] {
        let host = self.directory.path().display().to_string();
        [("HOST", host.as_str()), ("DBNAME", DBNAME), ("USER", USER), ("PASSWORD", PASSWORD)]
            .map(|(name, value)| (format!("PSQL_{name}"), value.to_owned()))
    }

    /// What `psql` needs in its environment to come here.
    pub fn libpq(&self) -> [(&'static str, String); 4] {
        let host = self.directory.path().display().to_string();
        [("PGHOST", host), ("PGDATABASE", DBNAME.into()), ("PGUSER", USER.into()), ("PGPASSWORD", PASSWORD.into())]
    }

    /// Where the server's programs are, `psql` most often among them.
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// How to reach it over TLS, where it was started so.
    pub fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Runs SQL as the owner and returns the rows of all statements as text.
    pub async fn sql(&self, sql: &str) -> Result<Vec<Vec<String>>> {
        let client = self.connect().await?;
        let messages = client.simple_query(sql).await.with_context(|| format!("run {sql:?}"))?;
        let rows = messages.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|column| row.get(column).unwrap_or("NULL").to_owned()).collect())
            }
            _ => None,
        });
        Ok(rows.collect())
    }

    /// The statements that plugins have run so far: those of the extended protocol.
    pub fn statements(&self) -> Result<Vec<String>> {
        let log = fs::read_to_string(&self.output).context("read the server's log")?;
        let executed = |line: &str| line.split_once("LOG:  execute <unnamed>: ").map(|(_, sql)| sql.to_owned());
        Ok(log.lines().filter_map(executed).collect())
    }

    async fn connect(&self) -> Result<Client> {
        let mut config = Config::new();
        config.host_path(self.directory.path()).user(USER).password(PASSWORD).dbname(DBNAME);
        // The socket's name ends in the port.
        config.port(self.tls.as_ref().map_or(5432, |tls| tls.port));
        config.application_name("operetta-tests");
        let (client, connection) = config.connect(NoTls).await.context("connect to PostgreSQL")?;
        tokio::spawn(connection);
        Ok(client)
    }

    async fn accepts(&mut self) -> Result<()> {
        eventually("PostgreSQL accepts connections", ACCEPTS_WITHIN, async || match self.connect().await {
            Ok(_) => Ok(Ok(())),
            // One that has ended will not listen however long one waits.
            Err(error) => match self.child.ensure_runs() {
                Ok(()) => Err(error),
                Err(ended) => Ok(Err(ended)),
            },
        })
        .await?
    }
}

/// Makes a certificate for 127.0.0.1 and its key, and finds a free port.
fn certify(directory: &Path) -> Result<Tls> {
    let signed = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).context("make a certificate")?;
    let (certificate, key) = (directory.join("server.crt"), directory.join("server.key"));
    fs::write(&certificate, signed.cert.pem()).context("write the certificate")?;
    fs::write(&key, signed.signing_key.serialize_pem()).context("write its key")?;
    // The server takes no key that others can read.
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).context("protect the key")?;
    give_away(&certificate)?;
    give_away(&key)?;
    let free = TcpListener::bind("127.0.0.1:0").context("find a free port")?;
    Ok(Tls { port: free.local_addr().context("read the port")?.port(), certificate })
}

/// To whoever runs the server.
fn give_away(path: &Path) -> Result<()> {
    match somebody()? {
        Some((user, group)) => {
            chown(path, Some(user), Some(group)).with_context(|| format!("give away {}", path.display()))
        }
        None => Ok(()),
    }
}

fn serve(
    run: &RunDir,
    name: &str,
    programs: &Path,
    directory: &Path,
    output: &Path,
    tls: Option<&Tls>,
) -> Result<Child> {
    let mut server = command(&programs.join("postgres"), directory)?;
    server.arg("-D").arg(directory.join("data")).arg("-k").arg(directory);
    for setting in ["fsync=off", "log_statement=all", "log_line_prefix="] {
        server.args(["-c", setting]);
    }
    match tls {
        Some(Tls { port, certificate }) => {
            server.args(["-c", "listen_addresses=127.0.0.1", "-c", "ssl=on", "-c", &format!("port={port}")]);
            server.args(["-c", &format!("ssl_cert_file={}", certificate.display())]);
            server.args(["-c", &format!("ssl_key_file={}", directory.join("server.key").display())]);
        }
        None => {
            server.args(["-c", "listen_addresses="]);
        }
    }
    Child::start(run, name, output, &mut server)
}

/// A program of the server, as whoever may run it.
fn command(program: &Path, directory: &Path) -> Result<Command> {
    let mut command = Command::new(program);
    command.current_dir(directory);
    if let Some((user, group)) = somebody()? {
        command.uid(user).gid(group);
    }
    Ok(command)
}

/// Where `initdb` and `postgres` are: on the PATH, or where Debian and Red Hat put them, the newest first.
fn programs() -> Result<PathBuf> {
    let mut places: Vec<PathBuf> = std::env::var_os("PATH").iter().flat_map(std::env::split_paths).collect();
    let mut versions = Vec::new();
    for (parent, below) in [("/usr/lib/postgresql", "bin"), ("/usr", "bin")] {
        for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let version = name.strip_prefix("pgsql-").or((parent != "/usr").then_some(name.as_str()));
            versions.extend(version.and_then(|text| text.parse::<u32>().ok()).map(|n| (n, entry.path().join(below))));
        }
    }
    versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    places.extend(versions.into_iter().map(|(_, path)| path));
    let complete = |place: &PathBuf| place.join("initdb").is_file() && place.join("postgres").is_file();
    places.into_iter().find(complete).context(
        "PostgreSQL's server is not installed, and tests and demo run a real one: install it (`apt-get install postgresql`, `dnf install \
         postgresql-server`, `brew install postgresql`); they start servers of their own and leave the system's alone",
    )
}

/// Who runs it where we are root, which PostgreSQL refuses to be.
fn somebody() -> Result<Option<(u32, u32)>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd").context("read the users of this machine")?;
    for wanted in ["postgres", "nobody"] {
        for line in users.lines() {
            let mut fields = line.split(':');
            if fields.next() == Some(wanted)
                && let [user, group] = [fields.nth(1), fields.next()].map(|id| id.and_then(|id| id.parse().ok()))
                && let (Some(user), Some(group)) = (user, group)
            {
                return Ok(Some((user, group)));
            }
        }
    }
    bail!("PostgreSQL does not run as root, and this machine has neither a user postgres nor nobody to run it as")
}
