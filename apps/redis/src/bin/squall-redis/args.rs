//! The arguments of the program.

use std::{
    ffi::OsString,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    path::PathBuf,
    time::Duration,
};

use clap::Parser;
use squall::config::{NameError, check_name};
use squall_redis::server::{
    BACKLOG, ClientTls, ClientTlsError, ListenError, Password, PasswordError, ServerOptions, check_protected,
};
use squall_units::TimeUnit;

/// The cluster's name where none is given.
pub(crate) const CLUSTER: &str = "squall-redis";

/// A replicated key-value store that speaks the Redis protocol.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "squall-redis",
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples. Without --id, all replicas run as processes of this host, under this one, which starts those again that die,
and stops all when it stops.

  squall-redis                            three replicas, on ports 7001 to 7003
  squall-redis --smoke                    three replicas on free ports, a check of everything, and the end
  squall-redis --smoke --fabric tcp --tls  the same, where replicas talk TCP over loopback, protected by TLS
  squall-redis --smoke --fabric verbs     the same over RDMA, if it was built with `--features verbs`
  squall-redis --durable DIR              three replicas whose data is on disk, in DIR, and there again after a restart
  squall-redis --smoke --durable NEW_DIR  the check, with one more: all replicas are killed (-9), and nothing
                                          acknowledged is lost
  squall-redis --soak 10m                 three replicas on free ports under a mixed load, with a report
  squall-redis --id 2                     one replica, on port 7002; run the others with --id 1 and --id 3
  squall-redis --id 2 --config kv.toml    one replica of the cluster that the file describes
  squall-redis --id 4 --join 1            a further replica, on port 7004, of the cluster in which replica 1 runs
  squall-redis front-end --members 1,2,3  a server on port 7000 that asks whichever replica serves

Only its own clients miss a replica that dies. The other replicas go on without it, as long as more than half of all
live: after some milliseconds if its process has ended, else after a second. Started again, it joins them, gets the
state, and serves. A replica that was only stopped, or cut off, comes back by itself. Meanwhile its clients are answered
CLUSTERDOWN, and UNKNOWN where the outcome of a command is not known.

SHUTDOWN stops the replica that is asked as Ctrl-C does: it leaves the group, and its exit code is 0. One that runs
under a supervisor is not started again then.

To replace replica 2 by one with a new id, here 4, while all goes on:

  squall-redis --id 4 --join 1            start the new one, and wait until it says that it serves
  redis-cli -p 7004 info squall            view_senders has 4 once it is a full member
  Ctrl-C on replica 2                      it answers what it was asked, leaves, and ends; the others need no timeout
                                           for it

Clients of a front end notice nothing of all this: it asks again, at another replica, and no command is carried out
twice.

Three machines, on which hosts a, b and c can reach each other at port 7700, need keys and one configuration. Make the
keys once,

  squall keys init --cluster kv --dir keys && squall keys add --dir keys --node 1,2,3

copy ca.pem and its own node-N.pem and node-N.key to each machine's /etc/kv/keys, and this to each as /etc/kv/kv.toml:

  cluster = \"kv\"
  [addresses]
  1 = \"a:7700\"
  2 = \"b:7700\"
  3 = \"c:7700\"
  [security]
  ca = \"keys/ca.pem\"
  certificate = \"keys/node-{id}.pem\"
  key = \"keys/node-{id}.key\"
  [groups.kv]
  bulk_reserve = \"528MiB\"
  # To have the data on each machine's disk too: mode = \"durable\" here, and above, before [addresses],
  # storage = \"/var/lib/kv/{id}\"

Then `squall doctor --config /etc/kv/kv.toml --id N` says whether replica N can run on its machine, and
`squall-redis --id N --config /etc/kv/kv.toml --listen 0.0.0.0 --password-file FILE` runs it there: port 7700 is for
replicas, ports 7001 to 7003 are for clients. Their connections are protected by TLS with --tls-cert-file and
--tls-key-file.

Data lives in memory only, unless --durable says where it is kept: then a write is answered once all replicas have it on
disk, a read shows nothing that a crash could undo, and replicas that were all killed go on where they were once they
are started again, in any order. INFO persistence tells how the log is. Without a password (--password-file, or
SQUALL_REDIS_PASSWORD in the environment) every process that reaches a port can read and write. Keys expire by the clock
of the replica that is asked or that was written to: keep the hosts' clocks in step. RUST_LOG sets what is logged to
standard error, for example RUST_LOG=squall=debug. The exit code is 0, 1 if something failed, 2 if the arguments make no
sense."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<ProgramCommand>,

    /// Replica N listens on port BASE + N - 1
    #[arg(long, value_name = "BASE", default_value_t = 7001, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: u16,

    /// The address to listen on; any but a loopback address opens the store to others, and needs a password
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    pub(crate) listen: IpAddr,

    /// The number of replicas of a cluster without a file; their ids count from 1
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=9), conflicts_with = "config")]
    pub(crate) replicas: u32,

    /// Run only the replica of this node, in this process
    #[arg(long, value_name = "N")]
    pub(crate) id: Option<u32>,

    /// A cluster's configuration; `[groups.kv]` holds the store's options, such as bulk_reserve, the longest command
    /// (64MiB if it is left out; 528MiB without a file, which takes any value)
    #[arg(long, value_name = "FILE", requires = "id")]
    pub(crate) config: Option<PathBuf>,

    /// The cluster to form, without a file: replicas with other names never meet
    #[arg(long, value_name = "NAME", value_parser = name, conflicts_with = "config")]
    pub(crate) cluster: Option<String>,

    /// Join the running cluster of the replica with this id, instead of forming one. With a file, its `join` says so
    #[arg(long, value_name = "ID", requires = "id", conflicts_with = "config", value_delimiter = ',')]
    pub(crate) join: Vec<String>,

    /// Keep this replica's vote on the cluster's members in this directory, so that it counts after a restart; the data
    /// stays in memory. With a file, its `storage` says so
    #[arg(long, value_name = "DIR", requires = "id", conflicts_with = "config")]
    pub(crate) storage: Option<PathBuf>,

    /// Keep the data on disk, replica N's in DIR/N, and go on with the data that is there. With a file, its `storage`,
    /// and `mode = "durable"` in `[groups.kv]`, say so
    #[arg(long, value_name = "DIR", conflicts_with_all = ["config", "storage"])]
    pub(crate) durable: Option<PathBuf>,

    /// The fabric that carries the replicas' messages
    #[arg(long, value_enum, default_value_t = Fabric::Shm, conflicts_with = "id")]
    pub(crate) fabric: Fabric,

    /// Protect the replicas' connections by TLS, with keys of this run alone
    #[arg(long, conflicts_with = "id")]
    pub(crate) tls: bool,

    /// The most clients that a replica serves at once
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) max_clients: usize,

    /// Disconnect clients after so long without traffic in either direction; 0 for never; a number alone is in seconds
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = whole_seconds())]
    pub(crate) timeout: u64,

    #[command(flatten)]
    pub(crate) limits: Limits,

    /// Start a cluster on free ports, check it through its sockets, report the checks, and stop it
    #[arg(long, conflicts_with_all = ["id", "config", "cluster"])]
    pub(crate) smoke: bool,

    /// Start a cluster on free ports, load all of it with all kinds of requests for so long, watch the
    /// resources that it uses, and check at the end that the replicas agree; Ctrl-C ends it early
    #[arg(long, value_name = "TIME", value_parser = duration(), conflicts_with_all = ["id", "config", "cluster", "smoke"])]
    pub(crate) soak: Option<Duration>,

    /// Multiply the time limits of --smoke by so much, for a slow machine, such as an emulated one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) patience: u32,

    /// The seed of the random parts of --smoke and --soak; each run says its own
    #[arg(long)]
    pub(crate) seed: Option<u64>,

    /// Run as a process of a cluster: say when ready, and stop when standard input ends
    #[arg(long, hide = true, requires = "id")]
    pub(crate) supervised: bool,
}

#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum ProgramCommand {
    /// Serve the data without being a replica: ask any replica that serves, so that clients do not notice when one
    /// fails
    FrontEnd(Box<FrontEndArgs>),
    #[command(flatten)]
    Describe(squall_command::DescribeCommand),
}

const FRONT_END_HELP: &str = "\
Examples:
  squall-redis front-end --members 1,2,3
  squall-redis front-end --listen 0.0.0.0:7000 --config kv.toml --keys keys --client web --password-file secret";

/// The options of a front end.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = FRONT_END_HELP)]
pub(crate) struct FrontEndArgs {
    /// The address to listen on
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7000")]
    pub(crate) listen: SocketAddr,

    /// Some of the replicas, of this host
    #[arg(long, value_name = "IDS", value_delimiter = ',', default_value = "1,2,3", conflicts_with = "config")]
    pub(crate) members: Vec<u32>,

    /// The cluster's name
    #[arg(long, value_name = "NAME", value_parser = name, default_value = CLUSTER, conflicts_with = "config")]
    pub(crate) cluster: String,

    /// The cluster's configuration, in place of both; --client says whose keys the front end has
    #[arg(long, value_name = "FILE", requires = "owner")]
    pub(crate) config: Option<PathBuf>,

    /// The client whose keys the front end has
    #[arg(long, value_name = "NAME", requires = "keys", group = "owner")]
    pub(crate) client: Option<String>,

    /// The directory with ca.pem and the client's keys, client-NAME.pem and client-NAME.key
    #[arg(long, value_name = "DIR", requires_all = ["client", "config"], conflicts_with = "id")]
    pub(crate) keys: Option<PathBuf>,

    /// In place of a client, the node whose keys the front end has, by the configuration
    #[arg(long, value_name = "N", requires = "config", group = "owner")]
    pub(crate) id: Option<u32>,

    /// The most clients served at once
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) max_clients: usize,

    /// Disconnect clients after so long without traffic in either direction; 0 for never; a number alone is in seconds
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = whole_seconds())]
    pub(crate) timeout: u64,

    #[command(flatten)]
    pub(crate) limits: Limits,
}

/// The environment variable with the password.
pub(crate) const PASSWORD: &str = "SQUALL_REDIS_PASSWORD";

/// The protection of a server from strangers.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Protection {
    /// The password that clients must give (AUTH): the file's first line
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,

    /// Talk TLS 1.3 to clients, with the certificate in this file (PEM; those between it and its CA follow it)
    #[arg(long, value_name = "FILE", requires = "tls_key_file")]
    pub(crate) tls_cert_file: Option<PathBuf>,

    /// The certificate's key
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub(crate) tls_key_file: Option<PathBuf>,

    /// Admit only clients that show a certificate of a CA in this file
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub(crate) tls_ca_cert_file: Option<PathBuf>,

    /// Refuse to listen off loopback addresses if clients need neither a password nor a certificate
    #[arg(long, value_enum, default_value_t = Switch::Yes)]
    pub(crate) protected_mode: Switch,
}

/// A switch, in the words of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Switch {
    /// On
    Yes,
    /// Off
    No,
}

impl Switch {
    fn is_on(self) -> bool {
        self == Switch::Yes
    }
}

/// The reason why a server is not protected as was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProtectionError {
    #[error(transparent)]
    Password(#[from] PasswordError),
    #[error(transparent)]
    Tls(#[from] ClientTlsError),
    #[error(transparent)]
    Listen(#[from] ListenError),
}

/// The options of a server that have Redis' names and meanings. CONFIG SET changes all but the backlog.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Limits {
    /// Refuse writes that need memory while more than this is in use (such as 4GiB); 0 for no limit. A replica's own
    /// clients alone are refused, so give all replicas the same limit; a front end counts its own memory alone
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = squall_units::size_in_memory)]
    pub(crate) maxmemory: usize,

    /// Keep requests in SLOWLOG that take this long from arrival to answer; -1 for none; a number alone is in
    /// microseconds
    #[arg(long, value_name = "TIME", default_value = "10ms", allow_negative_numbers = true)]
    #[arg(value_parser = micros_or_none)]
    pub(crate) slowlog_log_slower_than: i64,

    /// The most requests in SLOWLOG
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub(crate) slowlog_max_len: usize,

    /// Keep events in LATENCY that take this long; 0 for none; a number alone is in milliseconds
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = squall_units::whole_in(ANY, TimeUnit::Milliseconds))]
    pub(crate) latency_monitor_threshold: u64,

    /// The most connections that wait to be accepted; the system may permit fewer (sysctl net.core.somaxconn)
    #[arg(long, value_name = "N", default_value_t = BACKLOG, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) tcp_backlog: u16,

    #[command(flatten)]
    pub(crate) protection: Protection,
}

impl Limits {
    /// The options with which another process of this program has the same limits.
    pub(crate) fn options(&self) -> Vec<OsString> {
        let Limits {
            maxmemory,
            slowlog_log_slower_than,
            slowlog_max_len,
            latency_monitor_threshold,
            tcp_backlog,
            protection,
        } = self;
        let mut options = protection.options();
        options.extend(
            [
                format!("--maxmemory={maxmemory}"),
                format!("--slowlog-log-slower-than={slowlog_log_slower_than}"),
                format!("--slowlog-max-len={slowlog_max_len}"),
                format!("--latency-monitor-threshold={latency_monitor_threshold}"),
                format!("--tcp-backlog={tcp_backlog}"),
            ]
            .map(OsString::from),
        );
        options
    }

    /// The options of a server that listens at an address.
    pub(crate) fn server(
        &self,
        listen: SocketAddr,
        (max_clients, timeout_seconds): (usize, u64),
        (password, tls): (Option<Password>, Option<ClientTls>),
    ) -> ServerOptions {
        ServerOptions {
            listen,
            backlog: self.tcp_backlog,
            max_clients,
            timeout_seconds,
            password,
            tls,
            max_memory: self.maxmemory,
            slower_than_us: self.slowlog_log_slower_than,
            slow_log_len: self.slowlog_max_len,
            latency_threshold_ms: self.latency_monitor_threshold,
        }
    }
}

impl Protection {
    /// The options with which another process of this program has the same.
    fn options(&self) -> Vec<OsString> {
        let Protection { password_file, tls_cert_file, tls_key_file, tls_ca_cert_file, protected_mode } = self;
        let files = [
            ("--password-file", password_file),
            ("--tls-cert-file", tls_cert_file),
            ("--tls-key-file", tls_key_file),
            ("--tls-ca-cert-file", tls_ca_cert_file),
        ];
        let files = files.into_iter().filter_map(|(option, file)| Some([option.into(), file.as_ref()?.into()]));
        let mode = if protected_mode.is_on() { "--protected-mode=yes" } else { "--protected-mode=no" };
        files.flatten().chain([mode.into()]).collect()
    }

    /// Reads the password and the keys, and checks that strangers could not use the store at this address. The password
    /// is in a file, or in the environment, for processes in a container: a command line can be read by all users of a
    /// host.
    pub(crate) fn load(&self, listen: SocketAddr) -> Result<(Option<Password>, Option<ClientTls>), ProtectionError> {
        let password = match &self.password_file {
            Some(file) => Some(Password::load(file)?),
            None => {
                let said = std::env::var_os(PASSWORD);
                said.map(|password| Password::new(password.as_encoded_bytes(), PASSWORD)).transpose()?
            }
        };
        let tls = match (&self.tls_cert_file, &self.tls_key_file) {
            (Some(certificate), Some(key)) => {
                Some(ClientTls::load(certificate, key, self.tls_ca_cert_file.as_deref())?)
            }
            _ => None,
        };
        let proves = password.is_some() || tls.as_ref().is_some_and(ClientTls::asks_certificates);
        check_protected(listen, proves || !self.protected_mode.is_on())?;
        if !proves && !listen.ip().to_canonical().is_loopback() {
            tracing::warn!(address = %listen, "there is no password: every process that reaches this address can read and write");
        }
        Ok((password, tls))
    }
}

/// The fabrics that can carry the replicas' messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Fabric {
    /// Shared memory of this host
    Shm,
    /// TCP over loopback
    Tcp,
    /// RDMA: the first device with an active port, or the one that SQUALL_VERBS_DEVICE names, where {id} is a replica's
    /// number. Needs a program that was built with the feature `verbs`
    Verbs,
}

impl Args {
    /// The nodes of a cluster without a configuration file.
    pub(crate) fn members(&self) -> impl Iterator<Item = u32> + Clone + use<> {
        1..=self.replicas
    }

    /// The address at which the replica of node `id` listens.
    pub(crate) fn address(&self, id: u32) -> Result<SocketAddr, NoPort> {
        let port = id.checked_sub(1).and_then(|more| u32::from(self.port).checked_add(more));
        let port = port.and_then(|port| u16::try_from(port).ok()).ok_or(NoPort { base: self.port, id })?;
        Ok(SocketAddr::new(self.listen, port))
    }
}

/// A replica's port does not exist.
#[derive(Debug, thiserror::Error)]
#[error(
    "with --port {base}, there is no port for replica {id}: ids count from 1, and id plus --port may be at most 65536"
)]
pub(crate) struct NoPort {
    base: u16,
    id: u32,
}

/// Reads a cluster's name.
fn name(text: &str) -> Result<String, NameError> {
    check_name(text).map(|()| text.to_owned())
}

/// Reads the time of a run: a second or more.
fn duration() -> impl Fn(&str) -> Result<Duration, String> + Clone {
    squall_units::time_in(Duration::from_secs(1)..=Duration::from_secs(365 * 86_400), TimeUnit::Seconds)
}

/// The times that an option may have.
const ANY: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(365 * 86_400);

/// Reads a time of whole seconds.
fn whole_seconds() -> impl Fn(&str) -> Result<u64, String> + Clone {
    squall_units::whole_in(ANY, TimeUnit::Seconds)
}

/// Reads a time of whole microseconds, or -1.
fn micros_or_none(text: &str) -> Result<i64, String> {
    if text == "-1" { Ok(-1) } else { squall_units::whole_in(ANY, TimeUnit::Microseconds)(text).map(u64::cast_signed) }
}
