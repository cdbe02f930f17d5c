//! The memory of a batch as a DLPack tensor of bytes, which numpy, PyTorch and JAX read without a copy.
//!
//! Structures and names are those of DLPack 1.0 (`dlpack.h`).

use plimsoll_collect::Batch;
use plimsoll_memory::MappedRow;
use pyo3::prelude::*;
use std::ffi::{CStr, c_void};
use std::sync::Arc;

#[repr(C)]
struct Device {
    kind: i32,
    id: i32,
}

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

/// `DLManagedTensor`, for consumers older than 1.0.
#[repr(C)]
struct Unversioned {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Unversioned)>,
}

const CPU: i32 = 1;
const UINT: u8 = 1;

/// Holds what a tensor points into: the extents, and the batch, whose rows return to the collector on drop.
struct Context {
    _batch: Arc<Batch>,
    shape: [i64; 2],
    strides: [i64; 2],
}

/// The rows of a batch as one array of bytes, [E, bytes of a row].
#[pyclass(frozen)]
pub struct Memory {
    batch: Arc<Batch>,
}

impl Memory {
    /// Returns the rows of `batch` in place; `None` if they are not evenly spaced, as in `async`.
    pub fn of(batch: &Arc<Batch>) -> Option<Memory> {
        let stride = MappedRow::stride(batch.layout.bytes);
        let addresses = || batch.rows().iter().map(|row| row.bytes().as_ptr() as usize);
        let is_even = addresses().zip(addresses().skip(1)).all(|(a, b)| b == a + stride);
        is_even.then(|| Memory { batch: batch.clone() })
    }

    /// Returns the tensor and the context that it keeps alive.
    fn tensor(&self) -> (Tensor, *mut Context) {
        let rows = self.batch.rows();
        let data = rows.first().map_or(std::ptr::null(), |row| row.bytes().as_ptr());
        let context = Box::into_raw(Box::new(Context {
            _batch: self.batch.clone(),
            shape: [rows.len() as i64, self.batch.layout.bytes as i64],
            strides: [MappedRow::stride(self.batch.layout.bytes) as i64, 1],
        }));
        // SAFETY: the context was just made, and lives until the tensor's deleter frees it.
        let (shape, strides) = unsafe { (&raw mut (*context).shape, &raw mut (*context).strides) };
        let tensor = Tensor {
            data: data.cast_mut().cast(),
            device: Device { kind: CPU, id: 0 },
            ndim: 2,
            dtype: DataType { code: UINT, bits: 8, lanes: 1 },
            shape: shape.cast(),
            strides: strides.cast(),
            byte_offset: 0,
        };
        (tensor, context)
    }
}

#[pymethods]
impl Memory {
    /// Returns (kDLCPU, 0).
    fn __dlpack_device__(&self) -> (i32, i32) {
        (CPU, 0)
    }

    /// Returns a capsule that the consumer takes over. `max_version` from (1, 0) on gives a writable array; older
    /// consumers treat it as read-only.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = stream; // Of devices with streams.
        if dl_device.is_some_and(|device| device != (CPU, 0)) || copy == Some(true) {
            return Err(pyo3::exceptions::PyBufferError::new_err("a batch is lent as it lies, on the CPU"));
        }
        let (tensor, context) = self.tensor();
        let context = context.cast();
        if max_version.is_some_and(|(major, _)| major >= 1) {
            let deleter = Some(delete_versioned as unsafe extern "C" fn(_));
            let managed = Versioned { major: 1, minor: 0, context, deleter, flags: 0, tensor };
            capsule(py, Box::into_raw(Box::new(managed)).cast(), VERSIONED, drop_versioned)
        } else {
            let deleter = Some(delete_unversioned as unsafe extern "C" fn(_));
            let managed = Unversioned { tensor, context, deleter };
            capsule(py, Box::into_raw(Box::new(managed)).cast(), UNVERSIONED, drop_unversioned)
        }
    }
}

const VERSIONED: &CStr = c"dltensor_versioned";
const UNVERSIONED: &CStr = c"dltensor";

type Destructor = unsafe extern "C" fn(*mut pyo3::ffi::PyObject);

fn capsule<'py>(
    py: Python<'py>,
    managed: *mut c_void,
    name: &'static CStr,
    destructor: Destructor,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the interpreter is attached, `managed` is not null, the name is static, and a new capsule is owned.
    unsafe {
        let capsule = pyo3::ffi::PyCapsule_New(managed, name.as_ptr(), Some(destructor));
        Bound::from_owned_ptr_or_err(py, capsule)
    }
}

/// Frees a tensor and drops its batch.
///
/// # Safety
///
/// `managed` is from `__dlpack__`, and this is called once.
unsafe extern "C" fn delete_versioned(managed: *mut Versioned) {
    // SAFETY: the caller passes a tensor from `__dlpack__`, which leaked these two boxes, and calls this once.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Context>()));
    }
}

/// Frees an unversioned tensor, for consumers older than 1.0, and drops its batch.
///
/// # Safety
///
/// `managed` is from `__dlpack__`, and this is called once.
unsafe extern "C" fn delete_unversioned(managed: *mut Unversioned) {
    // SAFETY: as in the versioned form, by the same promise of the caller.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Context>()));
    }
}

/// Frees the tensor of a capsule that was not consumed.
///
/// # Safety
///
/// `capsule` is from `__dlpack__`; the interpreter calls this as it frees it.
unsafe extern "C" fn drop_versioned(capsule: *mut pyo3::ffi::PyObject) {
    // SAFETY: the caller passes a capsule from `__dlpack__`. A consumed one is renamed; others still own their tensor.
    unsafe {
        if pyo3::ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            delete_versioned(pyo3::ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}

/// Frees the tensor of an unversioned capsule that was not consumed.
///
/// # Safety
///
/// `capsule` is from `__dlpack__`; the interpreter calls this as it frees it.
unsafe extern "C" fn drop_unversioned(capsule: *mut pyo3::ffi::PyObject) {
    // SAFETY: as in the versioned form, by the same promise of the caller.
    unsafe {
        if pyo3::ffi::PyCapsule_IsValid(capsule, UNVERSIONED.as_ptr()) == 1 {
            delete_unversioned(pyo3::ffi::PyCapsule_GetPointer(capsule, UNVERSIONED.as_ptr()).cast());
        }
    }
}
