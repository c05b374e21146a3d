use proptest::{collection::vec, prelude::*};

use super::*;

const LIMIT: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Out {
    Request(Vec<Vec<u8>>),
    TooLarge(usize),
    Error(ProtocolError),
}

fn next(buffer: &mut RequestBuffer) -> Option<Out> {
    match buffer.next() {
        Ok(None) => None,
        Ok(Some(Incoming::TooLarge { bytes })) => Some(Out::TooLarge(bytes)),
        Ok(Some(Incoming::Request(request))) => {
            let words = words::split(request).expect("a request is words");
            Some(Out::Request(words.iter().map(|word| word.to_vec()).collect()))
        }
        Err(error) => Some(Out::Error(error)),
    }
}

/// Feeds a stream in pieces. Returns all requests that came out, an error last.
fn feed_to<'a>(mut buffer: RequestBuffer, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Out> {
    let mut all = Vec::new();
    for piece in pieces {
        buffer.space(piece.len()).extend_from_slice(piece);
        while let Some(out) = next(&mut buffer) {
            let is_last = matches!(out, Out::Error(_));
            all.push(out);
            if is_last {
                return all;
            }
        }
    }
    all
}

fn feed<'a>(limit: usize, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Out> {
    feed_to(RequestBuffer::new(limit), pieces)
}

fn request(words: &[&str]) -> Out {
    Out::Request(words.iter().map(|word| word.as_bytes().to_vec()).collect())
}

fn encode(words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend(word);
        bytes.extend(b"\r\n");
    }
    bytes
}

#[test]
fn arrays_and_lines_are_requests() {
    let stream =
        b"*2\r\n$3\r\nGET\r\n$1\r\na\r\nPING\r\n\r\n*0\r\n*-1\r\nset a  \"b \\x41\\n\" 'c\\'d'\n*1\r\n$0\r\n\r\n";
    let expected = [request(&["GET", "a"]), request(&["PING"]), request(&["set", "a", "b A\n", "c'd"]), request(&[""])];
    assert_eq!(feed(LIMIT, [&stream[..]]), expected);
}

#[test]
fn a_breach_is_told_in_redis_words_after_what_came_before() {
    let long = |first: &str| first.repeat(MAX_LINE_BYTES);
    for (stream, text) in [
        (long("x"), "too big inline request"),
        ("get \"a\r\n".into(), "unbalanced quotes in request"),
        ("get \"a\"b\r\n".into(), "unbalanced quotes in request"),
        (long("*"), "too big mbulk count string"),
        ("*x\r\n".into(), "invalid multibulk length"),
        ("*+1\r\n".into(), "invalid multibulk length"),
        ("*01\r\n".into(), "invalid multibulk length"),
        ("*1\rx".into(), "invalid multibulk length"),
        ("*1048577\r\n".into(), "invalid multibulk length"),
        ("*99999999999999999999\r\n".into(), "invalid multibulk length"),
        ("*1\r\n".to_owned() + &long("$"), "too big bulk count string"),
        ("*1\r\n:1\r\n".into(), "expected '$', got ':'"),
        ("*1\r\n$-1\r\n".into(), "invalid bulk length"),
        ("*1\r\n$x\r\n".into(), "invalid bulk length"),
        ("*1\r\n$1073741824\r\n".into(), "invalid bulk length"),
    ] {
        let stream = format!("PING\r\n{stream}");
        let out = feed(LIMIT, [stream.as_bytes()]);
        let [before, Out::Error(error)] = &out[..] else { panic!("{stream:.40}: {out:?}") };
        assert_eq!(*before, request(&["PING"]));
        assert_eq!(error.to_string(), format!("ERR Protocol error: {text}"), "{stream:.40}");
    }
}

#[test]
fn a_stranger_may_have_small_requests_only() {
    let feed = |stream: &str| {
        let mut buffer = RequestBuffer::new(usize::MAX);
        buffer.set_trusted(false);
        feed_to(buffer, [stream.as_bytes()])
    };
    assert_eq!(feed("*1\r\n$4\r\nPING\r\n"), [request(&["PING"])]);
    assert_eq!(feed("*11\r\n"), [Out::Error(ProtocolError::UnauthenticatedCount)]);
    assert_eq!(feed("*1\r\n$16385\r\n"), [Out::Error(ProtocolError::UnauthenticatedLength)]);
}

#[test]
fn an_announced_length_allocates_nothing() {
    let mut buffer = RequestBuffer::new(usize::MAX);
    let stream = format!("*1048576\r\n${MAX_BULK_BYTES}\r\nabc");
    buffer.space(stream.len()).extend_from_slice(stream.as_bytes());
    assert_eq!(buffer.next(), Ok(None));
    assert!(buffer.space(16).capacity() < 200);
}

#[test]
fn a_request_beyond_the_limit_is_dropped_as_it_arrives_and_the_next_one_counts() {
    let large = encode(&[b"SET".to_vec(), b"key".to_vec(), vec![b'v'; 100_000], b"NX".to_vec()]);
    let mut stream = large.clone();
    stream.extend(encode(&[b"PING".to_vec()]));
    let mut buffer = RequestBuffer::new(LIMIT);
    let mut all = Vec::new();
    for piece in stream.chunks(100) {
        buffer.space(piece.len()).extend_from_slice(piece);
        while let Some(out) = next(&mut buffer) {
            all.push(out);
        }
        assert!(buffer.bytes.capacity() + buffer.request.capacity() < 3 * LIMIT);
    }
    assert_eq!(all, [Out::TooLarge(large.len()), request(&["PING"])]);
}

#[test]
fn a_request_at_the_limit_is_taken() {
    let exact = encode(&[vec![b'x'; 500]]);
    assert_eq!(feed(exact.len(), [&exact[..]]), [Out::Request(vec![vec![b'x'; 500]])]);
    assert_eq!(feed(exact.len() - 1, [&exact[..]]), [Out::TooLarge(exact.len())]);
}

fn word() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![4 => vec(any::<u8>(), 0..12), 1 => vec(any::<u8>(), 300..700)]
}

/// Pieces of valid and invalid requests, so that random streams get far into the scanner.
fn fragment() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => vec(word(), 0..4).prop_map(|words| encode(&words)),
        1 => "[a-z \"'\\\\]{0,20}(\r)?\n".prop_map(String::into_bytes),
        1 => "[*$+:_%-]?-?[0-9]{0,4}\r\n".prop_map(String::into_bytes),
        1 => vec(any::<u8>(), 0..40),
    ]
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..400)) {
        feed(LIMIT, [&bytes[..]]);
    }

    #[test]
    fn requests_do_not_depend_on_how_the_stream_was_cut(fragments in vec(fragment(), 0..6), cuts in vec(any::<u16>(), 0..4)) {
        let stream = fragments.concat();
        let whole = feed(LIMIT, [&stream[..]]);
        prop_assert_eq!(&feed(LIMIT, stream.chunks(1)), &whole);
        for at in 0..stream.len().min(300) {
            let (left, right) = stream.split_at(at);
            prop_assert_eq!(&feed(LIMIT, [left, right]), &whole);
        }
        let mut cuts: Vec<usize> = cuts.iter().map(|&cut| usize::from(cut) % (stream.len() + 1)).collect();
        cuts.sort_unstable();
        cuts.insert(0, 0);
        cuts.push(stream.len());
        let pieces = cuts.windows(2).map(|pair| &stream[pair[0]..pair[1]]);
        prop_assert_eq!(&feed(LIMIT, pieces), &whole);
    }

    #[test]
    fn what_was_encoded_comes_out(requests in vec(vec(word(), 1..5), 0..5)) {
        let stream = requests.iter().flat_map(|words| encode(words)).collect::<Vec<u8>>();
        let expected: Vec<_> = requests.into_iter().map(Out::Request).collect();
        prop_assert_eq!(feed(usize::MAX, stream.chunks(7)), expected);
    }
}
