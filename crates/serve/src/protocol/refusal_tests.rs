//! Tests what clients of OpenAI's protocol do with an error depends on its status, its type and its headers.

use super::*;

#[test]
fn a_client_learns_from_status_type_and_headers_whether_to_try_again() {
    for (slug, status, kind, retries) in [
        ("serve-bad-request", 400, "invalid_request_error", false),
        ("serve-field-refused", 400, "invalid_request_error", false),
        ("serve-too-long", 400, "invalid_request_error", false),
        ("agent-limit", 400, "invalid_request_error", false),
        ("agent-sampling", 400, "invalid_request_error", false),
        ("serve-token-wrong", 401, "authentication_error", false),
        ("serve-unknown-model", 404, "not_found_error", false),
        ("serve-unknown-path", 404, "not_found_error", false),
        ("agent-episode-unknown", 404, "not_found_error", false),
        ("serve-body-too-slow", 408, "invalid_request_error", false),
        ("serve-body-too-large", 413, "invalid_request_error", false),
        ("serve-host-refused", 421, "invalid_request_error", false),
        ("serve-queue-full", 429, "rate_limit_error", true),
        ("serve-bodies-full", 429, "rate_limit_error", true),
        (slugs::ROLLOUT_NOT_FINITE, 500, "server_error", false),
        (slugs::CUDA_FAILED, 500, "server_error", false),
        ("internal", 500, "server_error", false),
        ("serve-stopping", 503, "server_error", true),
    ] {
        let refusal = Box::<Refusal>::from(Error::new(slug, "words"));
        let error = &refusal.body()["error"];
        assert_eq!((&error["code"], &error["type"]), (&json!(slug), &json!(kind)));
        let response = refusal.into_response();
        assert_eq!(response.status().as_u16(), status, "{slug}");
        assert_eq!(response.headers().contains_key(header::RETRY_AFTER), retries, "{slug}");
        assert_eq!(response.headers().contains_key(header::WWW_AUTHENTICATE), status == 401, "{slug}");
    }
}

#[test]
fn the_message_has_the_facts_and_the_hints() {
    let refusal = Refusal::bad("n", "n = 0: it can be 1 to 8").hint("leave it out");
    let body = refusal.body();
    assert_eq!(body["error"]["message"], "n = 0: it can be 1 to 8; hint: leave it out");
    assert_eq!(body["error"]["param"], "n");
    let error = Error::new("internal", "it broke").fact("on Tuesday").hint("wait");
    assert_eq!(Box::<Refusal>::from(error).body()["error"]["message"], "it broke; on Tuesday; hint: wait");
}
