def lines_of(found):
    out=[]
    for job in found:
        out.append(job["job"])
        for name, one in job["same"].items():
            out.append(f"  {name:16} first {one['first_step']:.1e} all {one['all_steps']:.1e} {one['holds']}")
        for name, one in (job["bands"] or {}).items():
            out.append(f"  {name:16} ours {one['ours']:.5g} +- {one['ours_half']:.2g} theirs {one['theirs']:.5g} +- {one['theirs_half']:.2g} {one['holds']}")
        out.append(f"  {job['seconds']} {job['peak_rss_bytes']}")
    return out
