/* cape_plugins.fused._rows: out = content + [cos | sin](2π · positions · frequencies).

   One pass: content is read once, out written once. The phase is taken in turns and in double, so
   that hours of audio keep their accuracy; what is left after the whole turns is a float. Single
   precision does the rest, eight or sixteen channels at a time: the inner loop is written so that
   compilers vectorise it, and compiled for several processors, of which the loader picks one. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    __GNUC__ >= 12
#define FOR_SEVERAL_PROCESSORS \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_SEVERAL_PROCESSORS
#endif

FOR_SEVERAL_PROCESSORS
static void add_rows(
    float *out,                /* (rows, 2 · half), contiguous */
    const float *content,      /* rows of 2 · half channels, `stride` apart */
    Py_ssize_t stride,         /* floats from row to row; 0 repeats one row */
    const double *positions,   /* (rows, axes); NaN is padding, to which nothing is added */
    const double *frequencies, /* (axes, half), in turns per unit of position */
    Py_ssize_t rows, Py_ssize_t half, Py_ssize_t axes)
{
    for (Py_ssize_t row = 0; row < rows; row++) {
        const float *restrict in = content + row * stride;
        float *restrict sum = out + row * 2 * half;
        const double first = positions[row * axes];
        const double second = axes == 2 ? positions[row * axes + 1] : 0.0;
        const double *restrict along_first = frequencies;
        const double *restrict along_second = axes == 2 ? frequencies + half : frequencies;
        if (isnan(first) || isnan(second)) {
            for (Py_ssize_t k = 0; k < 2 * half; k++) sum[k] = in[k];
            continue;
        }
        for (Py_ssize_t k = 0; k < half; k++) {
            const double turns = first * along_first[k] + second * along_second[k];
            const float part = (float)(turns - rint(turns));       /* in ±1/2 turn */
            const float quarters = rintf(4.0f * part);             /* -2 … 2 */
            const float x = (part - 0.25f * quarters) * 6.28318530717958648f; /* in ±π/4 */
            const float y = x * x;
            /* minimax polynomials on ±π/4, as in Cephes' sinf and cosf */
            const float s = x + x * y * (-1.6666654611e-1f +
                                         y * (8.3321608736e-3f + y * -1.9515295891e-4f));
            const float c = 1.0f - 0.5f * y + y * y * (4.166664568298827e-2f +
                            y * (-1.388731625493765e-3f + y * 2.443315711809948e-5f));
            const int q = (int)quarters;
            const float sine = q & 1 ? c : s;
            const float cosine = q & 1 ? s : c;
            sum[k] = in[k] + ((q + 1) & 2 ? -cosine : cosine);
            sum[k + half] = in[k + half] + (q & 2 ? -sine : sine);
        }
    }
}

/* Addresses come as integers: cpu.py has checked dtypes, shapes and strides. */
static PyObject *add_rows_at(PyObject *module, PyObject *arguments)
{
    unsigned long long out, content, positions, frequencies;
    Py_ssize_t stride, rows, half, axes;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "KKnKKnnn:add_rows", &out, &content, &stride, &positions,
                          &frequencies, &rows, &half, &axes))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    add_rows((float *)(size_t)out, (const float *)(size_t)content, stride,
             (const double *)(size_t)positions, (const double *)(size_t)frequencies, rows, half,
             axes);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"add_rows", add_rows_at, METH_VARARGS,
     "add_rows(out, content, stride, positions, frequencies, rows, half, axes): see _rows.c."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_rows", "Sinusoids added to rows; see cpu.py.", 0, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__rows(void) { return PyModule_Create(&definition); }
