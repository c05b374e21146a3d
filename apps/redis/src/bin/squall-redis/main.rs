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

use clap::Parser;

use self::args::{Args, Fabric, ProgramCommand};

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Without an output there is no way to tell the user.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    // A supervisor itself reports the replicas that died. When all stop, each sees the others leave, which is no news.
    let usual = if args.supervised { "warn,squall_membership=error,openraft=off" } else { "warn,openraft=off" };
    squall_command::log(usual);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("squall-redis: the system gave no event loop: {error}");
            return ExitCode::FAILURE;
        }
    };
    if args.tls && args.fabric == Fabric::Shm {
        eprintln!("squall-redis: --tls protects what goes over a network: give --fabric tcp or verbs too");
        return ExitCode::from(2);
    }
    if args.fabric == Fabric::Verbs && !cfg!(feature = "verbs") {
        eprintln!(
            "squall-redis: this program was built without RDMA: build it with `-p squall-redis --features verbs`, which needs \
             libibverbs"
        );
        return ExitCode::from(2);
    }
    if let Some(directory) = args.durable.as_deref().filter(|directory| args.smoke && has_files(directory)) {
        eprintln!(
            "squall-redis: --smoke changes keys and empties the store, and {} has files: give a new directory",
            directory.display()
        );
        return ExitCode::from(2);
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
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("squall-redis: {error}");
            ExitCode::FAILURE
        }
    }
}

fn has_files(directory: &Path) -> bool {
    directory.read_dir().is_ok_and(|mut files| files.next().is_some())
}
