// The pages work without this file. It adds a key for the filter, and says when the console does not answer.
(() => {
  const offline = document.getElementById("offline");
  document.addEventListener("htmx:sse:error", () => { offline.hidden = false; });
  document.addEventListener("htmx:error", () => { offline.hidden = false; });
  for (const name of ["htmx:sse:after:connection", "htmx:sse:after:message"]) {
    document.addEventListener(name, () => { offline.hidden = true; });
  }
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea");
    const filter = document.getElementById("q");
    if (event.key === "/" && !typing && filter && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      filter.select();
    }
  });
  for (const field of document.querySelectorAll(".filter select, .filter input[type=checkbox]")) {
    field.addEventListener("change", () => field.form.requestSubmit());
  }
})();
