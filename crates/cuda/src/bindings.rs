//! The functions of NVRTC, cuBLASLt and NCCL that are used, each from the very library that was opened.
//!
//! Their types are cudarc's. Its functions would look the libraries up by name once more, and might find others.

use super::library::{self, Lib};
use cudarc::cublaslt::sys as lt;
use cudarc::driver::sys::CUstream;
use cudarc::nvrtc::sys as nvrtc;
use plimsoll_base::Result;
use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

macro_rules! table {
    ($(#[$doc:meta])* $table:ident of $lib:ident { $($function:ident($($type:ty),*) -> $result:ty;)* }) => {
        $(#[$doc])*
        #[derive(Debug)]
        #[allow(non_snake_case)] // The names of the headers.
        pub(crate) struct $table {
            $(pub(crate) $function: unsafe extern "C" fn($($type),*) -> $result,)*
        }

        impl $table {
            /// Opens the library, unless it is open.
            ///
            /// Errors: `cuda-library-missing`.
            pub(crate) fn open() -> Result<&'static $table> {
                static TABLE: OnceLock<$table> = OnceLock::new();
                if let Some(table) = TABLE.get() {
                    return Ok(table);
                }
                let library = library::open(Lib::$lib)?;
                // SAFETY: the signatures are those of the library's headers, alike in all versions that are opened.
                let table = unsafe { $table { $($function: library.function(stringify!($function))?,)* } };
                Ok(TABLE.get_or_init(|| table))
            }
        }
    };
}

table! {
    Nvrtc of Nvrtc {
        nvrtcVersion(*mut c_int, *mut c_int) -> nvrtc::nvrtcResult;
        nvrtcGetNumSupportedArchs(*mut c_int) -> nvrtc::nvrtcResult;
        nvrtcGetSupportedArchs(*mut c_int) -> nvrtc::nvrtcResult;
        nvrtcCreateProgram(
            *mut nvrtc::nvrtcProgram, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
        ) -> nvrtc::nvrtcResult;
        nvrtcCompileProgram(nvrtc::nvrtcProgram, c_int, *const *const c_char) -> nvrtc::nvrtcResult;
        nvrtcGetCUBINSize(nvrtc::nvrtcProgram, *mut usize) -> nvrtc::nvrtcResult;
        nvrtcGetCUBIN(nvrtc::nvrtcProgram, *mut c_char) -> nvrtc::nvrtcResult;
        nvrtcGetProgramLogSize(nvrtc::nvrtcProgram, *mut usize) -> nvrtc::nvrtcResult;
        nvrtcGetProgramLog(nvrtc::nvrtcProgram, *mut c_char) -> nvrtc::nvrtcResult;
        nvrtcDestroyProgram(*mut nvrtc::nvrtcProgram) -> nvrtc::nvrtcResult;
    }
}

/// A communicator of NCCL.
pub(crate) type Comm = *mut c_void;
/// The name under which ranks of one communicator find each other.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NcclId(pub [u8; 128]);

/// `ncclConfig_t` of version 2.18: later ones take it, with defaults for what it lacks.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) size: usize,
    pub(crate) magic: u32,
    pub(crate) version: u32,
    pub(crate) blocking: c_int,
    pub(crate) cga_cluster_size: c_int,
    pub(crate) min_ctas: c_int,
    pub(crate) max_ctas: c_int,
    pub(crate) network: *const c_char,
    pub(crate) split_share: c_int,
}

table! {
    /// Sends and receives between cards. Results are numbers; 0 is success.
    Nccl of Nccl {
        ncclGetVersion(*mut c_int) -> c_int;
        ncclGetUniqueId(*mut NcclId) -> c_int;
        ncclGetErrorString(c_int) -> *const c_char;
        ncclGetLastError(Comm) -> *const c_char;
        ncclCommInitRankConfig(*mut Comm, c_int, NcclId, c_int, *mut Settings) -> c_int;
        ncclCommGetAsyncError(Comm, *mut c_int) -> c_int;
        ncclCommAbort(Comm) -> c_int;
        ncclGroupStart() -> c_int;
        ncclGroupEnd() -> c_int;
        ncclSend(*const c_void, usize, c_int, c_int, Comm, CUstream) -> c_int;
        ncclRecv(*mut c_void, usize, c_int, c_int, Comm, CUstream) -> c_int;
    }
}

table! {
    /// Products of bf16 matrices.
    CublasLt of CublasLt {
        cublasLtGetVersion() -> usize;
        cublasLtCreate(*mut lt::cublasLtHandle_t) -> lt::cublasStatus_t;
        cublasLtDestroy(lt::cublasLtHandle_t) -> lt::cublasStatus_t;
        cublasLtMatrixLayoutCreate(
            *mut lt::cublasLtMatrixLayout_t, lt::cudaDataType_t, u64, u64, i64
        ) -> lt::cublasStatus_t;
        cublasLtMatrixLayoutDestroy(lt::cublasLtMatrixLayout_t) -> lt::cublasStatus_t;
        cublasLtMatmulDescCreate(
            *mut lt::cublasLtMatmulDesc_t, lt::cublasComputeType_t, lt::cudaDataType_t
        ) -> lt::cublasStatus_t;
        cublasLtMatmulDescDestroy(lt::cublasLtMatmulDesc_t) -> lt::cublasStatus_t;
        cublasLtMatmulDescSetAttribute(
            lt::cublasLtMatmulDesc_t, lt::cublasLtMatmulDescAttributes_t, *const c_void, usize
        ) -> lt::cublasStatus_t;
        cublasLtMatmulPreferenceCreate(*mut lt::cublasLtMatmulPreference_t) -> lt::cublasStatus_t;
        cublasLtMatmulPreferenceDestroy(lt::cublasLtMatmulPreference_t) -> lt::cublasStatus_t;
        cublasLtMatmulPreferenceSetAttribute(
            lt::cublasLtMatmulPreference_t, lt::cublasLtMatmulPreferenceAttributes_t, *const c_void, usize
        ) -> lt::cublasStatus_t;
        cublasLtMatmulAlgoGetHeuristic(
            lt::cublasLtHandle_t, lt::cublasLtMatmulDesc_t, lt::cublasLtMatrixLayout_t, lt::cublasLtMatrixLayout_t,
            lt::cublasLtMatrixLayout_t, lt::cublasLtMatrixLayout_t, lt::cublasLtMatmulPreference_t, c_int,
            *mut lt::cublasLtMatmulHeuristicResult_t, *mut c_int
        ) -> lt::cublasStatus_t;
        cublasLtMatmul(
            lt::cublasLtHandle_t, lt::cublasLtMatmulDesc_t, *const c_void, *const c_void, lt::cublasLtMatrixLayout_t,
            *const c_void, lt::cublasLtMatrixLayout_t, *const c_void, *const c_void, lt::cublasLtMatrixLayout_t,
            *mut c_void, lt::cublasLtMatrixLayout_t, *const lt::cublasLtMatmulAlgo_t, *mut c_void, usize,
            lt::cudaStream_t
        ) -> lt::cublasStatus_t;
    }
}
