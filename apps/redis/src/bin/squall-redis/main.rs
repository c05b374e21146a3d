//! A replicated key-value store that speaks the Redis protocol.
//!
//! Three replica processes hold the same data. A client of any of them can write, and every read, at any of them, sees
//! the latest write. Try it:
//!
//! ```text
//! cargo run --release -p squall-redis
//! redis-cli -p 7001 set greeting hello
//! redis-cli -p 7003 get greeting
//! ```
//!
//! The store, its commands and the server are the library `squall_redis`. This program adds the processes: one replica,
//! or a cluster of them on this host, and a check of such a cluster.

mod agreement;
mod args;
mod client;
mod cluster;
mod front_end;
mod network;
mod replica;
mod smoke;
mod soak;
mod usage;

use std::{path::Path, process::ExitCode};

use squall_command::CommandError;
use squall_redis::allocator::CountingAllocator;

use self::args::{Args, Fabric, ProgramCommand};

/// Counts the memory in use, for `maxmemory` and INFO.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    // A supervisor itself reports the replicas that died. When all stop, each sees the others leave, which is no news.
    let level = |args: &Args| if args.supervised { "warn,squall_membership=error" } else { "warn" };
    squall_command::run("squall-redis", level, run)
}

fn run(args: Args) -> Result<(), CommandError> {
    if let Some(ProgramCommand::Describe(describe)) = &args.command {
        return describe.run(squall_command::command_of::<Args>());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CommandError::Failed(format!("the system gave no event loop: {error}")))?;
    let protection = &args.limits.protection;
    if (args.smoke || args.soak.is_some()) && (protection.password_file.is_some() || protection.tls_cert_file.is_some())
    {
        return Err(CommandError::usage(
            "--smoke and --soak have clients that give no password and talk no TLS: leave --password-file and \
             --tls-cert-file out",
        ));
    }
    if args.tls && args.fabric == Fabric::Shm {
        return Err(CommandError::usage("--tls protects what goes over a network: give --fabric tcp or verbs too"));
    }
    if args.fabric == Fabric::Verbs && !cfg!(feature = "verbs") {
        return Err(CommandError::usage(
            "this program was built without RDMA: build it with `-p squall-redis --features verbs`, which needs libibverbs",
        ));
    }
    if let Some(directory) = args.durable.as_deref().filter(|directory| args.smoke && has_files(directory)) {
        return Err(CommandError::Usage(format!(
            "--smoke changes keys and empties the store, and {} has files: give a new directory",
            directory.display()
        )));
    }
    let done = runtime.block_on(async {
        match args.id {
            _ if let Some(ProgramCommand::FrontEnd(front_end)) = &args.command => front_end::run(front_end).await,
            Some(id) => replica::run(&args, id).await.map_err(|error| error.to_string()),
            None if args.smoke => smoke::run(&args).await,
            None if let Some(duration) = args.soak => soak::of_a_cluster(&args, duration).await,
            None => cluster::run(&args).await.map_err(|error| error.to_string()),
        }
    });
    // A thread may still wait for members that will not come.
    runtime.shutdown_background();
    done.map_err(CommandError::Failed)
}

fn has_files(directory: &Path) -> bool {
    directory.read_dir().is_ok_and(|mut files| files.next().is_some())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;
    use squall_command::{check::problems, command_of};

    use super::*;

    #[test]
    fn off_loopback_a_password_is_asked_for_unless_told_otherwise() {
        let load = |options: &[&str], listen: &str| {
            let args = Args::try_parse_from([&["squall-redis"], options].concat()).expect("they make sense");
            args.limits.protection.load(listen.parse().expect("it is an address")).map_err(|error| error.to_string())
        };
        assert!(load(&[], "127.0.0.1:7001").is_ok());
        let refused = load(&[], "0.0.0.0:7001").unwrap_err();
        assert!(refused.contains("--password-file") && refused.contains("--protected-mode no"), "{refused}");
        assert!(load(&["--protected-mode", "no"], "0.0.0.0:7001").is_ok());
        let directory = squall_command::TemporaryDirectory::new("password").expect("a directory can be made");
        let file = directory.path().join("password");
        std::fs::write(&file, "secret\n").expect("there is room");
        let file = file.to_str().expect("a readable path");
        assert!(load(&["--password-file", file], "[2001:db8::1]:7001").is_ok_and(|(password, _)| password.is_some()));
        assert!(Args::try_parse_from(["squall-redis", "--tls-cert-file", file]).is_err(), "it has no key");
    }

    #[test]
    fn a_front_end_of_a_configuration_has_the_keys_of_a_client_or_of_a_node() {
        let make_sense = |options: &str| {
            let words = "squall-redis front-end --config kv.toml".split(' ');
            Args::try_parse_from(words.chain(options.split_whitespace())).is_ok()
        };
        assert!(make_sense("--keys keys --client web") && make_sense("--id 1"));
        for options in ["", "--client web", "--keys keys", "--keys keys --id 1", "--keys keys --client web --id 1"] {
            assert!(!make_sense(options), "{options}");
        }
    }

    #[test]
    fn the_help_the_book_and_the_messages_name_what_there_is() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let crates = ["apps/redis"];
        let problems = problems(command_of::<Args>(), &root, &crates, &["features", "node"]);
        assert!(problems.is_empty(), "{problems:#?}");
    }
}
