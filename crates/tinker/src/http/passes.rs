//! `forward_backward`: the one route whose body is protobuf.

use super::call::{Answer, Call};
use super::json::promised;
use crate::codec::forward;
use crate::limits::BODY_BYTES_MAX;
use crate::record::{Datums, RequestTask};
use plimsoll_base::{Error, Result};
use std::borrow::Cow;
use std::sync::Arc;

pub fn forward_backward(call: &Call<'_>) -> Result<Answer> {
    let body = if call.is_zstd {
        Cow::Owned(forward::decompressed(call.body, BODY_BYTES_MAX)?)
    } else {
        Cow::Borrowed(call.body)
    };
    if body.first() == Some(&b'{') {
        return Err(Error::new(
            "tinker-bad-request",
            "the body of forward_backward is protobuf, and this is JSON",
        )
        .hint("clients send protobuf since 0.25.0: pip install 'tinker>=0.25'"));
    }
    let head = forward::head(&body)?;
    let adapter = call.tinker.lock().model(call.tenant, &head.model)?.adapter.clone();
    let base = call.tinker.base_model(&adapter.base_model)?;
    let seq = (head.seq > 0).then_some(head.seq);
    call.in_order(&head.model, seq, || {
        let request = forward::read(&body, base.vocab)?;
        if let Some(long) = request.datums.iter().position(|datum| datum.tokens.len() > base.context) {
            let tokens = request.datums[long].tokens.len();
            let message = format!(
                "data[{long}] has {tokens} tokens, and the context of {} is {}",
                base.name, base.context
            );
            return Err(Error::new("tinker-bad-request", message));
        }
        let (datums, loss) = (Datums(Arc::new(request.datums)), request.loss);
        Ok(RequestTask::Pass { datums, loss, gradients: !request.forward_only })
    })
}

impl Call<'_> {
    /// Submits a request of a model; a place whose request is refused is passed over by the model's order.
    ///
    /// Errors: those of `read` and of `Tinker::submit`.
    pub fn in_order(
        &self,
        model: &str,
        seq: Option<i64>,
        read: impl FnOnce() -> Result<RequestTask>,
    ) -> Result<Answer> {
        let submitted = read().and_then(|task| self.tinker.submit(self.tenant, (model, seq), task));
        if let (Err(error), Some(seq)) = (&submitted, seq)
            && super::call::status_of(error) == axum::http::StatusCode::BAD_REQUEST
        {
            self.tinker.void(self.tenant, model, seq);
        }
        submitted.map(|(number, heard)| promised(number, Some(model), heard))
    }
}
