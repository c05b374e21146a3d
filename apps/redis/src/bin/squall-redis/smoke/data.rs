//! Checks that clients find the data that they store.

use std::collections::HashSet;

use redis_protocol::resp2::types::OwnedFrame;

use super::{Bench, Found};
use crate::client::{RespClient, request, show};

/// Checks that every command works, at each replica.
pub(super) async fn commands(bench: &Bench) -> Found {
    for (index, &address) in bench.replicas.iter().enumerate() {
        let mut client = RespClient::connect(address).await?;
        let key = |name: &str| format!("commands:{index}:{name}");
        let (a, b, n) = (&*key("a"), &*key("b"), &*key("n"));
        for (words, expected) in [
            (&["PING"][..], "PONG"),
            (&["ping", "hello"], "hello"),
            (&["ECHO", "hello"], "hello"),
            (&["SELECT", "0"], "OK"),
            (&["SET", a, "1"], "OK"),
            (&["GET", a], "1"),
            (&["GET", b], "(nil)"),
            (&["SET", a, "2", "NX"], "(nil)"),
            (&["SET", b, "2", "XX"], "(nil)"),
            (&["SET", a, "3", "GET"], "1"),
            (&["SETNX", b, "4"], "1"),
            (&["GETSET", b, "5"], "4"),
            (&["APPEND", b, "6"], "2"),
            (&["STRLEN", b], "2"),
            (&["TYPE", b], "string"),
            (&["EXISTS", a, b, n, a], "3"),
            (&["INCR", n], "1"),
            (&["INCRBY", n, "10"], "11"),
            (&["DECR", n], "10"),
            (&["DECRBY", n, "20"], "-10"),
            (&["MSET", a, "x", b, "y"], "OK"),
            (&["MGET", a, "none", b], "[x, (nil), y]"),
            (&["DEL", a, b, "none"], "2"),
            (&["CONFIG", "GET", "save"], "[save, ]"),
            (&["CONFIG", "GET", "appendonly"], "[appendonly, no]"),
            (&["CLIENT", "SETNAME", "smoke"], "OK"),
            (&["CLIENT", "GETNAME"], "smoke"),
            (&["CLIENT", "SETINFO", "LIB-NAME", "smoke"], "OK"),
            (&["COMMAND", "INFO", "get", "none"], "[[get, 2, [readonly, fast], 1, 1, 1, [], [], [], []], (nil)]"),
            (&["RESET"], "RESET"),
            (&["CLIENT", "GETNAME"], "(nil)"),
            (&["QUIT"], "OK"),
        ] {
            client.expect(words, expected).await?;
        }
        if !client.rest().await?.is_empty() {
            return Err(format!("{address} said more after QUIT"));
        }
    }
    let mut client = RespClient::connect(bench.replicas[0]).await?;
    client.send(b"SET inline \"a b\"\r\nGET inline\r\nDBSIZE\r\nFLUSHALL\r\nDBSIZE\r\nKEYS *\r\n").await?;
    let mut answers = Vec::new();
    for _ in 0..6 {
        answers.push(show(&client.answer().await?));
    }
    if answers != ["OK", "a b", "4", "OK", "0", "[]"] {
        return Err(format!("typed by hand, the answers were {answers:?}"));
    }
    Ok("each command once at each replica, and some as typed by hand".to_owned())
}

/// Errors are those of Redis, to the letter.
pub(super) async fn error_texts(bench: &Bench) -> Found {
    let cases = [
        (&["foo", "a", "b"][..], "-ERR unknown command 'foo', with args beginning with: 'a' 'b' "),
        (&["GET"], "-ERR wrong number of arguments for 'get' command"),
        (&["SET", "a"], "-ERR wrong number of arguments for 'set' command"),
        (&["MSET", "a", "1", "b"], "-ERR wrong number of arguments for 'mset' command"),
        (&["SET", "a", "1", "WHAT"], "-ERR syntax error"),
        (&["SET", "a", "1", "NX", "XX"], "-ERR syntax error"),
        (&["SELECT", "1"], "-ERR DB index is out of range"),
        (&["HELLO", "9"], "-NOPROTO unsupported protocol version"),
        (&["CONFIG", "WHAT"], "-ERR unknown subcommand 'WHAT'. Try CONFIG HELP."),
        (&["SET", "text", "abc"], "OK"),
        (&["INCR", "text"], "-ERR value is not an integer or out of range"),
        (&["INCRBY", "text", "1.5"], "-ERR value is not an integer or out of range"),
        (&["SET", "most", "9223372036854775807"], "OK"),
        (&["INCR", "most"], "-ERR increment or decrement would overflow"),
        (&["SET", "a", "1", "EX", "0"], "-ERR invalid expire time in 'set' command"),
        (&["EXEC"], "-ERR EXEC without MULTI"),
        (&["AUTH", "other", "x"], "-WRONGPASS invalid username-password pair or user is disabled."),
    ];
    for &address in &bench.replicas {
        let mut client = RespClient::connect(address).await?;
        for (words, expected) in cases {
            client.expect(words, expected).await?;
        }
    }
    Ok(format!("{} requests at each replica", cases.len()))
}

/// A client that asks for RESP3 gets it, from that answer on.
pub(super) async fn resp3(bench: &Bench) -> Found {
    let mut client = RespClient::connect(bench.replicas[1]).await?;
    client.send(b"GET none\r\nHELLO 3\r\nGET none\r\nCONFIG GET save\r\nHELLO 2\r\nGET none\r\nQUIT\r\n").await?;
    let text = String::from_utf8(client.rest().await?).map_err(|error| error.to_string())?;
    let expected =
        ["$-1\r\n%7\r\n", "$5\r\nproto\r\n:3\r\n", "_\r\n%1\r\n$4\r\nsave\r\n$0\r\n\r\n*14\r\n", "$-1\r\n+OK\r\n"];
    match expected.iter().find(|part| !text.contains(*part)) {
        None => Ok("HELLO 3 and back: maps, and nulls".to_owned()),
        Some(part) => Err(format!("{part:?} is missing in {text:?}")),
    }
}

/// A write that one replica has acknowledged is at once visible at all others.
pub(super) async fn reads_see_writes_elsewhere(bench: &Bench) -> Found {
    const ROUNDS: usize = 100;
    let mut clients = RespClient::connect_to_all(&bench.replicas).await?;
    for round in 0..ROUNDS {
        let value = &*round.to_string();
        clients[round % bench.replicas.len()].expect(&["SET", "seen", value], "OK").await?;
        for client in &mut clients {
            client.expect(&["GET", "seen"], value).await?;
        }
    }
    Ok(format!("{ROUNDS} writes, in turn at each replica, were read at once at all"))
}

/// Answers come in order. Each request sees those before it, and none after it.
pub(super) async fn pipelines_keep_their_order(bench: &Bench) -> Found {
    const ROUNDS: usize = 500;
    for &address in &bench.replicas {
        let mut client = RespClient::connect(address).await?;
        client.expect(&["DEL", "pipe"], if address == bench.replicas[0] { "0" } else { "1" }).await?;
        let mut stream = Vec::new();
        for _ in 0..ROUNDS {
            for words in [&["INCR", "pipe"][..], &["GET", "pipe"], &["EXISTS", "pipe"], &["INCR", "pipe"], &["PING"]] {
                stream.extend(request(words));
            }
        }
        client.send(&stream).await?;
        for round in 0..ROUNDS {
            let mut answers = Vec::new();
            for _ in 0..5 {
                answers.push(show(&client.answer().await?));
            }
            let (first, second) = ((2 * round + 1).to_string(), (2 * round + 2).to_string());
            if answers != [&*first, &first, "1", &second, "PONG"] {
                return Err(format!("in round {round} at {address}: {answers:?}"));
            }
        }
    }
    Ok(format!("{} requests in one go at each replica, reads between writes", 5 * ROUNDS))
}

/// Increments of many clients at all replicas add up, and no two get the same answer.
pub(super) async fn increments_add_up(bench: &Bench) -> Found {
    const CLIENTS: usize = 4;
    const EACH: usize = 500;
    const PIPELINE: usize = 10;
    let mut tasks = Vec::new();
    for index in 0..CLIENTS * bench.replicas.len() {
        let mut client = RespClient::connect(bench.replicas[index % bench.replicas.len()]).await?;
        tasks.push(tokio::spawn(async move {
            let mut seen = Vec::new();
            for _ in 0..EACH / PIPELINE {
                client.send(&request(&["INCR", "sum"]).repeat(PIPELINE)).await?;
                for _ in 0..PIPELINE {
                    match client.answer().await? {
                        OwnedFrame::Integer(number) => seen.push(number),
                        other => return Err(format!("INCR answered {}", show(&other))),
                    }
                }
            }
            Ok(seen)
        }));
    }
    let total = tasks.len() * EACH;
    let mut all = HashSet::new();
    for task in tasks {
        let seen = task.await.map_err(|error| error.to_string())??;
        if !seen.is_sorted_by(|earlier, later| earlier < later) {
            return Err("one client's answers went backwards".to_owned());
        }
        all.extend(seen);
    }
    if all.len() != total {
        return Err(format!("{total} increments had {} different answers", all.len()));
    }
    for &address in &bench.replicas {
        RespClient::connect(address).await?.expect(&["GET", "sum"], &total.to_string()).await?;
    }
    Ok(format!("{total} increments by {} clients of all replicas", CLIENTS * bench.replicas.len()))
}

/// Checks that no MGET sees half of an MSET.
pub(super) async fn many_keys_change_at_once(bench: &Bench) -> Found {
    const ROUNDS: usize = 300;
    let keys: Vec<String> = (0..10).map(|key| format!("many:{key}")).collect();
    let set = |value: String| {
        let mut words = vec!["MSET"];
        keys.iter().for_each(|key| words.extend([&**key, &*value]));
        request(&words)
    };
    let get = {
        let mut words = vec!["MGET"];
        words.extend(keys.iter().map(|key| &**key));
        request(&words)
    };
    let mut writer = RespClient::connect(bench.replicas[0]).await?;
    writer.send(&set("start".to_owned())).await?;
    writer.answer().await?;
    let mut readers = Vec::new();
    for &address in &bench.replicas {
        let (mut reader, get) = (RespClient::connect(address).await?, get.clone());
        readers.push(tokio::spawn(async move {
            let mut values = HashSet::new();
            for _ in 0..ROUNDS {
                reader.send(&get).await?;
                let OwnedFrame::Array(found) = reader.answer().await? else {
                    return Err("MGET answered no array".to_owned());
                };
                if found.iter().any(|value| *value != found[0]) {
                    return Err(format!("MGET saw half of an MSET: {}", show(&OwnedFrame::Array(found))));
                }
                values.insert(show(&found[0]));
            }
            Ok(values.len())
        }));
    }
    for round in 0..ROUNDS {
        writer.send(&set(round.to_string())).await?;
        let answer = show(&writer.answer().await?);
        if answer != "OK" {
            return Err(format!("MSET answered {answer}"));
        }
    }
    let mut seen = 0;
    for reader in readers {
        seen += reader.await.map_err(|error| error.to_string())??;
    }
    Ok(format!("{ROUNDS} MSETs of {} keys under {ROUNDS} MGETs at each replica, which saw {seen} states", keys.len()))
}
