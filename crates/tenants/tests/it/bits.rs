//! Numbers follow from a model and its requests alone: not from other tenants, slots, ranks of others, or parking.

use crate::rig::{
    Drawn, How, SMALL, Server, drawn, learn, reinforce, sample, sample_with, sampler, scored, tokens,
};
use crate::wire::{datum, floats, ids, metric, next_tokens, pass};
use plimsoll_config::ModelDtype;

/// What a tenant hears of its work: log-probs and norms, and what its adapter draws at two times.
type Heard = (Vec<Vec<u32>>, Vec<String>, Vec<Drawn>);

/// Trains an adapter of a rank with both kinds of loss, and samples it while it is trained.
fn work(server: &Server, tenant: usize, rank: u32) -> Heard {
    let client = server.client(tenant);
    let session = client.session();
    let model = client.model_of(&session, 0, rank);
    let (mut passes, mut norms, mut draws) = (Vec::new(), Vec::new(), Vec::new());
    let prompt = tokens(tenant, 3, 9);
    let mut seq = 1;
    for round in 0..2 {
        for _ in 0..2 {
            let first = learn(&client, &model, tenant, seq);
            let second = learn(&client, &model, tenant, seq + 1);
            let step = client.step(&model, seq + 2);
            passes.extend([scored(&client.result(&first)), scored(&client.result(&second))]);
            norms.push(client.value(&step)["metrics"].to_string());
            seq += 3;
        }
        let id = sampler(&client, &model, seq, round);
        let asked =
            [sample(&client, &id, 0, &prompt, (3, 12)), sample(&client, &id, 1, &prompt[..4], (1, 1))];
        let drew = asked.map(|asked| drawn(&client.result(&asked)));
        // What was drawn is what the trainer says of it: the ratio of both is 1.
        let response: Vec<i32> = drew[0].tokens[0].iter().map(|token| *token as i32).collect();
        let text = [&prompt[..], &response].concat();
        let old: Vec<f32> = drew[0].prompt[1..]
            .iter()
            .chain(&drew[0].logprobs[0])
            .map(|bits| f32::from_bits(*bits))
            .collect();
        let result = client.result(&reinforce(&client, &model, seq + 1, (&text, &old, 0.5)));
        let again: Vec<u32> = scored(&result);
        assert_eq!(
            again,
            old.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
            "tenant {tenant}, round {round}"
        );
        assert_eq!((metric(&result, "ratio:min"), metric(&result, "ratio:max")), (1.0, 1.0));
        assert_eq!(metric(&result, "kl_sampler_trainer:sum"), 0.0);
        passes.push(again);
        norms.push(client.value(&client.step(&model, seq + 2))["metrics"].to_string());
        seq += 3;
        draws.extend(drew);
    }
    (passes, norms, draws)
}

#[test]
fn an_adapter_among_others_has_the_bits_of_one_alone() {
    let ranks = [4, 8, 3];
    for dtype in [ModelDtype::Bf16, ModelDtype::F32] {
        let alone: Vec<Heard> = (0..3)
            .map(|tenant| {
                let folder = tempfile::tempdir().unwrap();
                // No room for another.
                let how = How { slots: [2, 1], dtype, ..SMALL };
                work(&Server::start(folder.path(), how), tenant, ranks[tenant])
            })
            .collect();
        let folder = tempfile::tempdir().unwrap();
        // Three models in two slots, of which one is parked at any time; three saved ones in two.
        let server = Server::start(folder.path(), How { dtype, ..SMALL });
        let together: Vec<Heard> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|tenant| {
                    let server = &server;
                    scope.spawn(move || work(server, tenant, ranks[tenant]))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (tenant, (one, other)) in alone.iter().zip(&together).enumerate() {
            assert_eq!(one.0, other.0, "log-probs of tenant {tenant}, {dtype:?}");
            assert_eq!(one.2, other.2, "samples of tenant {tenant}, {dtype:?}");
            assert_eq!(one.1, other.1, "norms of tenant {tenant}, {dtype:?}");
        }
        assert!(alone[0].0 != alone[1].0 && alone[0].0[0] != alone[0].0[6], "they learn, each its own");
    }
}

#[test]
fn a_higher_bound_of_ranks_moves_no_bit_on_a_cpu() {
    let [one, other] = [3, 8].map(|rank_max| {
        let folder = tempfile::tempdir().unwrap();
        work(&Server::start(folder.path(), How { rank_max, on_cpu: true, ..SMALL }), 1, 3)
    });
    // The norm's sum has zeros of the higher rank in it, and so other last bits.
    assert!(one.0 == other.0 && one.2 == other.2);
}

#[test]
fn several_targets_of_a_position_are_as_many_datums() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), SMALL);
    let client = server.client(0);
    let session = client.session();
    let [one, many] = [0, 1].map(|n| client.model(&session, n));
    let text = tokens(0, 1, 30);
    let columns: [Vec<i64>; 3] =
        [3, 5, 11].map(|shift| text.iter().map(|t| i64::from(*t + shift) % 13).collect());
    let weights: [Vec<f32>; 3] = [0.5, -0.25, 1.5].map(|w| (0..30).map(|i| w * i as f32 / 30.0).collect());
    let apart: Vec<Vec<u8>> = (0..3)
        .map(|k| datum(&text, &[("target_tokens", ids(&columns[k])), ("weights", floats(&weights[k]))]))
        .collect();
    let row = |i: usize| (0..3).map(move |k| (i, k));
    let wide_ids: Vec<i64> = (0..30).flat_map(row).map(|(i, k)| columns[k][i]).collect();
    let wide_weights: Vec<f32> = (0..30).flat_map(row).map(|(i, k)| weights[k][i]).collect();
    let shaped = |dense: Vec<u8>| {
        // The shape of the tensors is [30, 3].
        let end = dense.windows(3).rposition(|window| window[..2] == [0x22, 1]).unwrap();
        [&dense[..end], &[0x22, 2, 30, 3][..]].concat()
    };
    let wide = datum(
        &text,
        &[("target_tokens", shaped(ids(&wide_ids))), ("weights", shaped(floats(&wide_weights)))],
    );
    let of_one = client.result(&client.pass(&pass(&one, 1, "cross_entropy", &[wide], &[])));
    let of_many = client.result(&client.pass(&pass(&many, 1, "cross_entropy", &apart, &[])));
    let (a, b) = (scored(&of_one), scored(&of_many));
    assert!((0..30).all(|i| (0..3).all(|k| a[3 * i + k] == b[30 * k + i])), "each target's log-prob");
    let (a, b) = (metric(&of_one, "loss:sum"), metric(&of_many, "loss:sum"));
    assert!((a - b).abs() < 1e-4 * a.abs(), "{a} {b}");
    let norm =
        |model: &str| client.value(&client.step(model, 2))["metrics"]["grad_norm:mean"].as_f64().unwrap();
    let (a, b) = (norm(&one), norm(&many));
    // bf16 rounds the rows' gradients, once where targets share a row.
    assert!(a > 0.0 && (a - b).abs() < 0.02 * a, "{a} {b}");
    let after = |model: &str| {
        client.result(&client.pass(&pass(model, 3, "cross_entropy", &[next_tokens(&text)], &[])))
    };
    assert!(metric(&after(&one), "loss:sum") > 0.0 && scored(&after(&many)) != scored(&of_many));
}

#[test]
fn samples_of_one_prompt_share_its_rows_and_keep_their_bits() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), SMALL);
    let client = server.client(0);
    let session = client.session();
    let [together, apart] = [0, 1].map(|n| client.model(&session, n));
    let weighted = |text: &[i32], weight: f32| {
        let targets: Vec<i64> = text[1..].iter().map(|token| i64::from(*token)).collect();
        let weights = floats(&vec![weight; targets.len()]);
        datum(&text[..text.len() - 1], &[("target_tokens", ids(&targets)), ("weights", weights)])
    };
    let prompt = tokens(0, 1, 17);
    let texts = [9, 1, 14].map(|n| [prompt.clone(), tokens(0, n, n as usize)].concat());
    let [a, b, c] = texts.each_ref().map(|text| weighted(text, 0.5));
    // Between them, one that begins otherwise: nothing is shared.
    let other = weighted(&tokens(3, 2, 12), 0.0);
    let pass_of = |model: &str, datums: &[Vec<u8>]| {
        let done = client.result(&client.pass(&pass(model, 1, "cross_entropy", datums, &[])));
        let norm = client.value(&client.step(model, 2))["metrics"]["grad_norm:mean"].as_f64().unwrap();
        (scored(&done), norm)
    };
    let (shared, norm) = pass_of(&together, &[a.clone(), b.clone(), c.clone()]);
    let (alone, norm_alone) = pass_of(&apart, &[a, other.clone(), b, other, c]);
    let rows = texts.each_ref().map(|text| text.len() - 1);
    let starts = [0, rows[0] + 11, rows[0] + rows[1] + 22];
    let alone: Vec<u32> =
        starts.iter().zip(rows).flat_map(|(start, rows)| alone[*start..start + rows].to_vec()).collect();
    assert!(shared == alone && shared.len() == rows.iter().sum::<usize>(), "each target's log-prob");
    // bf16 rounds the rows' gradients, once where datums share a row.
    assert!(norm > 0.0 && (norm - norm_alone).abs() < 0.02 * norm, "{norm} {norm_alone}");
}

#[test]
fn many_adapters_among_neighbours_draw_what_each_draws_alone() {
    let folder = tempfile::tempdir().unwrap();
    // Cards choose kernels by the ranks that neighbours have together: 80 are more than the fastest takes.
    let server = Server::start(folder.path(), How { slots: [2, 5], rank_max: 16, ..SMALL });
    let client = server.client(0);
    let session = client.session();
    let samplers: Vec<String> = (0..5)
        .map(|number| {
            let model = client.model_of(&session, number, 16);
            let learnt = learn(&client, &model, number as usize, 1);
            client.value(&client.step(&model, 2));
            client.result(&learnt);
            sampler(&client, &model, 3, number)
        })
        .collect();
    // Rows with lists go pass by pass, the others run ahead.
    for (round, listed) in [[0, 0], [3, 2]].into_iter().enumerate() {
        let ask = |at: usize, time: u64| {
            let (seq, prompt) = (2 * round as u64 + time, tokens(at, 7, 9));
            sample_with(&client, &samplers[at], seq, &prompt, (1, 40), listed)
        };
        let asked: Vec<_> = (0..5).map(|at| ask(at, 0)).collect();
        let together: Vec<Drawn> = asked.iter().map(|asked| drawn(&client.result(asked))).collect();
        for (at, one) in together.iter().enumerate() {
            assert_eq!(*one, drawn(&client.result(&ask(at, 1))), "adapter {at}, lists {listed:?}");
        }
        assert_ne!(together[0].logprobs, together[1].logprobs);
    }
}
