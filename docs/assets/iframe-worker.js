// Browsers do not start workers for pages that were opened from a file, and the search runs in a
// worker. For such pages this runs the worker's script in a hidden frame, so that the search works.
// The theme would fetch a script of this kind from the network.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.body.appendChild(document.createElement("iframe"));
      frame.hidden = true;
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = frame.contentDocument.createElement("script");
      this.loaded = new Promise((done) => script.addEventListener("load", done));
      script.src = url;
      frame.contentDocument.body.appendChild(script);
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {}
  };
}
