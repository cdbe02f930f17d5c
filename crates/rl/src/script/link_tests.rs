//! Frames as scripts send them, whole and broken.

use super::super::room::ScriptLimits;
use super::*;

const LIMITS: ScriptLimits = ScriptLimits {
    sequences: 2,
    prompt_tokens: 4,
    response_tokens: 3,
    vocab: 10,
    rows_bytes: 8,
    state_bytes: 8,
};

fn frame(header: &str, numbers: &[u8]) -> Vec<u8> {
    [&(header.len() as u32).to_le_bytes()[..], header.as_bytes(), numbers].concat()
}

/// Reads the requests of `sent`, up to the end of the run or of the socket.
fn read(sent: &[u8]) -> (Vec<Served<Verb>>, ScriptArrays) {
    let (ours, mut theirs) = UnixStream::pair().expect("a socket");
    theirs.write_all(sent).expect("it is short");
    drop(theirs);
    let mut link =
        Link { reader: BufReader::new(ours.try_clone().expect("a handle")), writer: BufWriter::new(ours) };
    let (mut arrays, mut gradients) = ScriptArrays::bind(LIMITS);
    let mut found = Vec::new();
    loop {
        let request = link.request((&mut arrays, &mut gradients));
        let is_over = matches!(request, Err(Fault::OfRun(_)));
        found.push(request);
        if is_over {
            return (found, arrays);
        }
    }
}

#[test]
fn numbers_come_as_they_are() {
    let numbers: Vec<u8> = [0.5f32, -0.0, f32::MIN_POSITIVE].into_iter().flat_map(f32::to_le_bytes).collect();
    let (ours, mut theirs) = UnixStream::pair().expect("a socket");
    theirs
        .write_all(&frame(r#"{"verb": "drop", "arrays": [["mask", "<f4", 3]]}"#, &numbers))
        .expect("it is short");
    let mut link =
        Link { reader: BufReader::new(ours.try_clone().expect("a handle")), writer: BufWriter::new(ours) };
    let (mut arrays, mut gradients) = ScriptArrays::bind(LIMITS);
    assert!(matches!(link.request((&mut arrays, &mut gradients)), Ok(Verb::Drop {})));
    assert_eq!(
        arrays.mask.iter().map(|n| n.to_bits()).collect::<Vec<_>>(),
        [0x3f00_0000, 0x8000_0000, 0x0080_0000]
    );
    link.answer(json!({ "a": 1 }), &[("x", Numbers::F32(vec![&arrays.mask[..1], &arrays.mask[1..]]))])
        .expect("open");
    drop(link);
    let mut back = Vec::new();
    theirs.read_to_end(&mut back).expect("it is closed");
    assert!(back.ends_with(&numbers), "{back:?}");
}

#[test]
fn what_a_request_has_wrong_is_refused_and_the_next_one_is_read() {
    let cases = [
        (r#"{"verb": "fly"}"#, 0, "script-bad-request", "unknown variant `fly`"),
        (r#"{"verb": "drop", "more": 1}"#, 0, "script-bad-request", "more"),
        (r#"{"verb": "sample", "n": -1, "grade": true}"#, 0, "script-bad-request", "-1"),
        (r#"{"verb": "drop", "arrays": [["mask", "<u4", 2]]}"#, 8, "script-bad-array", "must be <f4"),
        (r#"{"verb": "drop", "arrays": [["wings", "<f4", 2]]}"#, 8, "script-bad-array", "`wings`"),
        (r#"{"verb": "drop", "arrays": [["mask", "<f4", 7]]}"#, 28, "script-too-large", "7 entries"),
    ];
    for (header, bytes, slug, words) in cases {
        let sent = [frame(header, &vec![0; bytes]), frame(r#"{"verb": "drop"}"#, &[])].concat();
        let (found, _) = read(&sent);
        match &found[..] {
            [Err(Fault::OfRequest(error)), Ok(Verb::Drop {}), Err(Fault::OfRun(end))] => {
                assert_eq!((error.slug, end.slug), (slug, "script-ended"), "{header}");
                assert!(error.message.contains(words), "{error}");
            }
            other => panic!("{header}: {other:?}"),
        }
    }
}

#[test]
fn what_is_no_frame_ends_the_run_by_name() {
    let long = (HEADER_BYTES_MAX + 1).to_le_bytes().to_vec();
    let huge = frame(r#"{"verb": "drop", "arrays": [["mask", "<f4", 18446744073709551615]]}"#, &[]);
    let many = format!(r#"{{"verb": "drop", "arrays": [{}]}}"#, vec![r#"["mask", "<f4", 0]"#; 17].join(","));
    for sent in [
        long,
        huge,
        frame(&many, &[]),
        frame("[1]", &[]),
        frame("{", &[]),
        frame(r#"{"arrays": 3}"#, &[]),
        frame(r#"{"arrays": [["mask", "<f8", 1]]}"#, &[0; 8]),
    ] {
        match &read(&sent).0[..] {
            [Err(Fault::OfRun(error))] => assert_eq!(error.slug, "script-bad-frame", "{sent:?}"),
            other => panic!("{other:?}"),
        }
    }
    for sent in [&[][..], &[9, 0], &frame(r#"{"arrays": [["mask", "<f4", 2]]}"#, &[0; 4])] {
        match &read(sent).0[..] {
            [Err(Fault::OfRun(error))] => assert_eq!(error.slug, "script-ended", "{sent:?}"),
            other => panic!("{other:?}"),
        }
    }
}
