//! A front end as a process: a server that is no replica.

use std::time::Duration;

use squall::{
    Config, NodeId,
    client::{Client, ClientConfig},
    config::Security,
    keys::{ClientRights, Files, Principal},
};
use squall_command::say;
use squall_redis::{
    Store,
    server::{BULK_RESERVE, FrontEnd, GROUP, listen},
};
use tokio::net::TcpListener;

use crate::{args::FrontEndArgs, replica::stop_asked};

/// The time for which a request is retried while no replica can answer it.
const PATIENCE: Duration = Duration::from_secs(20);

/// The most requests of all clients together that may wait for answers.
const MAX_WAITING: usize = 1 << 18;

/// The cluster of a configuration, as a client with the keys that the arguments name.
fn cluster_of(config: &Config, args: &FrontEndArgs) -> Result<ClientConfig, String> {
    let (Some(directory), Some(name)) = (&args.keys, &args.client) else {
        return ClientConfig::of(config).map_err(|error| error.to_string());
    };
    let owner = Principal::Client(name.clone(), ClientRights::default());
    let keys = Security::Tls(Files::in_directory(directory).of(owner));
    ClientConfig::of_with(config, &keys).map_err(|error| error.to_string())
}

/// Runs a front end until this process is asked to stop. Every failure is a sentence.
pub(crate) async fn run(args: &FrontEndArgs) -> Result<(), String> {
    let stop = stop_asked(false).map_err(|error| error.to_string())?;
    let protection = args.limits.protection.load(args.listen).map_err(|error| error.to_string())?;
    let (mut cluster, max_command_bytes, others) = match &args.config {
        Some(file) => {
            // A client is no node: with keys of its own, the id means nothing.
            let config = Config::load_as(file, args.id.unwrap_or(1)).map_err(|error| error.to_string())?;
            let cluster = cluster_of(&config, args)?;
            (cluster, config.group(GROUP).max_message_bytes(), config.members().len().saturating_sub(1))
        }
        None => {
            let members = args.members.iter().copied().map(NodeId);
            (ClientConfig::on_host(&args.cluster, members), BULK_RESERVE, args.members.len().saturating_sub(1))
        }
    };
    cluster.timeout = PATIENCE;
    cluster.max_waiting = MAX_WAITING;
    let client = Client::<Store>::connect(&cluster, GROUP).map_err(|error| error.to_string())?;
    let listener = listen(args.listen, args.limits.tcp_backlog).map_err(|error| error.to_string())?;
    let listener = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
    let listener = listener.map_err(|error| error.to_string())?;
    let options = args.limits.server(args.listen, (args.max_clients, args.timeout), protection);
    let front_end = FrontEnd::new(client, options, max_command_bytes, others);
    say(format_args!("the front end serves redis-cli -p {}; Ctrl-C stops it", args.listen.port()));
    tokio::select! {
        () = front_end.serve(listener) => {}
        _ = front_end.shutdown_asked() => tracing::info!("a client asked this front end to stop"),
        () = stop => tracing::info!("asked to stop"),
    }
    Ok(())
}
